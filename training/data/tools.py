"""Turns that call tools: well-known ones, and random ones so that copying is learnt as a skill."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from training.data.source import Source, phrasings
from training.data.turn import Call, Tool, ToolTurn
from training.data.values import NOUNS, VERBS, fields, said, to_json, value

CURRENCIES = "USD EUR GBP JPY CHF CAD AUD INR SEK NOK BRL MXN".split()
SKIES = ["sunny", "cloudy", "rainy", "windy", "foggy", "clear"]


def tool(
    name: str, description: str, properties: Mapping[str, Any], optional: Sequence[str] = ()
) -> Tool:
    required = [key for key in properties if key not in optional]
    schema = {"type": "object", "properties": dict(properties), "required": required}
    function = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": function}


def strings(*names: str) -> dict[str, Any]:
    return {name: {"type": "string"} for name in names}


def turn(
    made: Tool,
    user: str,
    arguments: Sequence[Mapping[str, Any]],
    results: Sequence[Any],
    report: str,
) -> ToolTurn:
    name = made["function"]["name"]
    shown = tuple(item if isinstance(item, str) else to_json(item) for item in results)
    return ToolTurn(made, user, tuple(Call(name, item) for item in arguments), shown, report)


def listed(items: Sequence[str]) -> str:
    return ", ".join(items[:-1]) + " and " + items[-1] if len(items) > 1 else items[0]


def how_many(source: Source, parallel: float) -> int:
    """How many calls one request asks for."""
    return source.pick([2, 2, 3]) if source.chance(parallel) else 1


# Well-known tools


WEATHER = phrasings(
    "What's the weather in {}?",
    "What is the weather like in {} today?",
    "How is the weather in {}?",
    "weather {}",
    "Do I need an umbrella in {}?",
    "Tell me the current weather in {}.",
    "Is it cold in {} right now?",
    "Can you check the weather for {}?",
    "What's the temperature in {}?",
    "Will it rain in {}?",
    "Compare the weather in {}.",
    "Please look up the weather in {}.",
)


def weather(source: Source) -> ToolTurn:
    key = source.pick(["city", "city", "location"])
    name = source.pick(
        [
            "get_weather",
            "get_weather",
            "weather",
            "get_current_weather",
            "weather_lookup",
            "getWeather",
        ]
    )
    description = source.pick(
        ["Get the current weather for a city.", "Get weather", "Current weather in a location."]
    )
    cities = list(dict.fromkeys(source.city() for _ in range(how_many(source, 0.4))))
    results = [{"temp_c": source.number(-9, 38), "sky": source.pick(SKIES)} for _ in cities]
    report = " ".join(
        f"It is {result['temp_c']} °C and {result['sky']} in {city}."
        for result, city in zip(results, cities, strict=True)
    )
    user = source.split(WEATHER, 0.3).format(listed(cities))
    return turn(
        tool(name, description, strings(key)),
        user,
        [{key: city} for city in cities],
        results,
        report,
    )


SEARCH = phrasings(
    "Search for {}.",
    "Look up {} for me.",
    "Please find information about {}.",
    "Can you google {}?",
    "search {}",
    "Find out more on {}.",
    "Search the web for {}",
    "I want to read about {}. Search it.",
    "Find pages about {}.",
)


def search(source: Source) -> ToolTurn:
    key = source.pick(["query", "query", "q", "text"])
    made = tool(
        source.pick(["search", "web_search", "search_web", "google"]),
        source.pick(["Search the web.", "Web search"]),
        strings(key),
    )
    query = source.phrase(1, 3)
    if source.chance(0.3):
        query = source.pick(["history of {}", "best {}", "news about {}", "cost of {}"]).format(
            query
        )
    title = source.pick(["Guide to ", "All about ", ""]) + source.phrase(1, 2)
    author, year = source.name(), source.number(1990, 2026)
    results = [{"title": title, "author": author, "year": year}]
    report = f'I found "{title}" by {author} ({year}).'
    return turn(made, source.split(SEARCH, 0.3).format(query), [{key: query}], results, report)


EVENT = phrasings(
    "Add {t} on {d} to my calendar.",
    "Schedule {t} for {d}.",
    "Put {t} in my calendar on {d}.",
    "I have {t} on {d}, please add it.",
    "Can you book {t} on {d}?",
    "On {d} I have {t}. Add it please.",
    "Please plan {t} on {d}.",
)


def event(source: Source) -> ToolTurn:
    what, when = source.pick([("title", "date"), ("name", "day"), ("event", "date")])
    made = tool(
        source.pick(["add_event", "create_event", "calendar_add"]),
        "Add an event to the calendar.",
        strings(what, when),
    )
    title = source.pick(
        [
            f"meeting with {source.name()}",
            f"lunch with {source.name()}",
            f"{source.phrase(1, 2)} workshop",
            f"flight to {source.city()}",
            "dentist visit",
            source.phrase(2, 3),
        ]
    )
    date, number = source.date(), source.number(100, 9999)
    user = source.ask(EVENT, t=title, d=date)
    report = f"Result: status is ok and event_id is {number}."
    results = [{"status": "ok", "event_id": number}]
    return turn(made, user, [{what: title, when: date}], results, report)


CONVERT = phrasings(
    "Convert {a} {f} to {t}.",
    "How much is {a} {f} in {t}?",
    "What are {a} {f} in {t}?",
    "I need {a} {f} in {t}.",
    "{a} {f} to {t} please",
    "Change {a} {f} into {t}.",
    "Exchange {a} {f} for {t}.",
)


def convert(source: Source) -> ToolTurn:
    amount, give, get = source.pick(
        [
            ("amount", "from", "to"),
            ("value", "source", "target"),
            ("amount", "from_currency", "to_currency"),
        ]
    )
    properties = {amount: {"type": "number"}, **strings(give, get)}
    name = source.pick(["convert", "convert_currency", "exchange"])
    made = tool(name, "Convert an amount between currencies.", properties)
    first, second = source.random.sample(CURRENCIES, 2)
    sum_ = source.pick(
        [source.number(1, 999), source.number(1, 50) * 10, round(source.random.uniform(1, 99), 2)]
    )
    result = round(sum_ * source.random.uniform(0.3, 3), 2)
    return turn(
        made,
        source.ask(CONVERT, a=sum_, f=first, t=second),
        [{amount: sum_, give: first, get: second}],
        [{"result": result}],
        f"{sum_} {first} is {result} {second}.",
    )


MAIL = phrasings(
    "Send an email to {e} about {t}.",
    "Email {e} about {t}.",
    "Write to {e} about {t}.",
    "Please mail {e} regarding {t}.",
    "Send {e} a mail about {t}.",
)


def mail(source: Source) -> ToolTurn:
    to, about = source.pick([("to", "subject"), ("recipient", "subject"), ("to", "body")])
    made = tool(
        source.pick(["send_email", "email", "send_mail"]), "Send an email.", strings(to, about)
    )
    person = source.email() if source.chance(0.6) else source.name()
    topic = source.phrase(1, 3)
    user = source.ask(MAIL, e=person, t=topic)
    return turn(
        made, user, [{to: person, about: topic}], [{"status": "sent"}], "Result: status is sent."
    )


TIMER = phrasings(
    "Set a timer for {} minutes.",
    "Start a {} minute timer.",
    "Remind me in {} minutes.",
    "timer {} minutes",
    "I need a timer of {} minutes.",
)


def timer(source: Source) -> ToolTurn:
    key = source.pick(["minutes", "minutes", "duration"])
    made = tool(
        source.pick(["set_timer", "start_timer", "timer"]),
        "Start a timer.",
        {key: {"type": "integer"}},
    )
    minutes = [source.number(1, 120) for _ in range(how_many(source, 0.3))]
    user = source.split(TIMER, 0.3).format(listed([str(count) for count in minutes]))
    results = [{"status": "started"} for _ in minutes]
    return turn(made, user, [{key: n} for n in minutes], results, "Result: status is started.")


STOCK = phrasings(
    "What is the stock price of {}?",
    "Price of {}",
    "How is {} doing on the stock market?",
    "Get the price for {}.",
    "stock {}",
    "Show the stock price of {}.",
)


def stock(source: Source) -> ToolTurn:
    key = source.pick(["symbol", "ticker"])
    made = tool(
        source.pick(["get_stock_price", "stock_price", "quote"]),
        "Get the price of a stock.",
        strings(key),
    )
    symbols = list(dict.fromkeys(source.letters(2, 5) for _ in range(how_many(source, 0.35))))
    prices = [round(source.random.uniform(2, 900), 2) for _ in symbols]
    report = " ".join(
        f"The price of {symbol} is {price}." for symbol, price in zip(symbols, prices, strict=True)
    )
    user = source.split(STOCK, 0.3).format(listed(symbols))
    results = [{"price": price} for price in prices]
    return turn(made, user, [{key: symbol} for symbol in symbols], results, report)


KNOWN: tuple[Callable[[Source], ToolTurn], ...] = (
    weather,
    search,
    event,
    convert,
    mail,
    timer,
    stock,
)

# Random tools

NATURAL = {
    "city": ["in {v}"],
    "location": ["in {v}", "at {v}"],
    "country": ["in {v}"],
    "to": ["to {v}"],
    "from": ["from {v}"],
    "source": ["from {v}"],
    "target": ["to {v}"],
    "title": ["titled {v}", "called {v}", "with title {v}"],
    "name": ["named {v}", "called {v}", "with the name {v}"],
    "date": ["on {v}", "for {v}"],
    "time": ["at {v}"],
    "day": ["on {v}"],
    "owner": ["owned by {v}", "for {v}"],
    "subject": ["about {v}"],
    "topic": ["about {v}"],
    "message": ["saying {v}", "with message {v}"],
    "text": ["saying {v}", "with text {v}"],
    "reason": ["because of {v}", "with reason {v}"],
    "limit": ["with at most {v} results", "with limit {v}"],
    "quantity": ["with quantity {v}"],
    "minutes": ["for {v} minutes"],
    "days": ["for {v} days"],
    "seats": ["for {v} seats", "with {v} seats"],
    "email": ["with email {v}"],
    "language": ["in {v}"],
    "author": ["by {v}"],
    "channel": ["in channel {v}"],
    "unit": ["in {v}"],
    "priority": ["with priority {v}"],
}
ASK_RANDOM = phrasings(
    "Please {v} the {n} {b}.",
    "{V} a {n} {b}.",
    "Can you {v} the {n} {b}?",
    "I want to {v} a {n} {b}.",
    "{V} {n} {b}",
    "Call {f} {b}.",
    "Use {f} {b}",
    "I need you to {v} a {n} {b}.",
)


def random_tool(source: Source) -> tuple[Tool, str, str]:
    """A tool of random name and parameters, its verb and its noun."""
    verb = source.pick(VERBS)
    noun = source.pick(NOUNS) if source.chance(0.5) else source.plain_word()
    properties = fields(source, source.pick([1, 1, 2, 2, 2, 3, 3]))
    first = next(iter(properties))
    optional = [key for key in properties if key != first and source.chance(0.2)]
    draw = source.random.random()
    if draw < 0.65:
        name = f"{verb}_{noun}"
    elif draw < 0.8:
        name = verb + noun.capitalize()
    else:
        name = noun if draw < 0.88 else f"{noun}_{source.plain_word()}"
    description = source.pick(
        [
            f"{verb.capitalize()} a {noun}.",
            f"{verb.capitalize()} the {noun}.",
            f"{verb.capitalize()}s a {noun} by {first}.",
            f"{noun.capitalize()} {verb}",
        ]
    )
    return tool(name, description, properties, optional), verb, noun


def describe(source: Source, arguments: Mapping[str, Any], style: int) -> str:
    """The arguments as a user would say them."""
    quoted = source.chance(0.2)
    pairs = [
        (key, f'"{item}"' if quoted and isinstance(item, str) else said(item))
        for key, item in arguments.items()
    ]
    if source.chance(0.3):
        source.random.shuffle(pairs)
    if len(pairs) == 1 and style > 3:
        return pairs[0][1]
    if style == 0:
        return "with " + listed([f"{key} {item}" for key, item in pairs])
    if style == 1:
        return ", ".join(f"{key}={item}" for key, item in pairs)
    if style == 2:
        return "where " + " and ".join(f"{key} is {item}" for key, item in pairs)
    if style == 3:
        return "using " + ", ".join(f"{item} as {key}" for key, item in pairs)
    if style == 4:
        return ", ".join(f"{key}: {item}" for key, item in pairs)
    return " ".join(natural(source, key, item) for key, item in pairs)


def natural(source: Source, key: str, item: str) -> str:
    forms = NATURAL.get(key, [f"with {key} {{v}}", f"with the {key} {{v}}"])
    return source.pick(forms).replace("{v}", item)


def random_call(source: Source) -> ToolTurn:
    made, verb, noun = random_tool(source)
    function = made["function"]
    schema = function["parameters"]
    used = [key for key in schema["properties"] if key in schema["required"] or source.chance(0.5)]
    arguments = [
        {key: value(source, key, schema["properties"][key]) for key in used}
        for _ in range(how_many(source, 0.25))
    ]
    style = source.number(0, 5)
    body = " and another ".join(describe(source, item, style) for item in arguments)
    user = source.split(ASK_RANDOM, 0.3)
    slots = {"v": verb, "V": verb.capitalize(), "n": noun, "f": function["name"]}
    for key, text in slots.items():
        user = user.replace("{" + key + "}", text)
    outcomes = [outcome(source) for _ in arguments]
    report = " ".join(text for _, text in outcomes)
    return turn(made, user.replace("{b}", body), arguments, [item for item, _ in outcomes], report)


def outcome(source: Source) -> tuple[Any, str]:
    """What a tool returned, and the sentence that reports it."""
    draw = source.random.random()
    text = source.phrase(2, 5)
    if draw < 0.1:
        return {"error": text}, f"The tool reported an error: {text}."
    if draw < 0.2:
        return text, f"The result is: {text}."
    result: dict[str, Any] = {}
    if source.chance(0.6):
        result["status"] = source.pick(["ok", "done", "created", "pending", "success"])
    for key, schema in fields(source, source.pick([1, 1, 2]), nested=False).items():
        result.setdefault(key, value(source, key, schema))
    facts = " and ".join(f"{key} is {said(item)}" for key, item in result.items())
    return result, f"Result: {facts}."


def tool_turn(source: Source) -> ToolTurn:
    return random_call(source) if source.chance(0.6) else source.pick(KNOWN)(source)
