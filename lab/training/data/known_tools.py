"""Turns that call well-known tools: weather, search, calendar, money, mail, timer, stocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from eaglegate.lab.training.data.source import Phrasings, Source
from eaglegate.lab.training.data.turn import Tool, ToolTurn, listed, make_tool, strings
from eaglegate.lab.training.data.values import VERBS

CURRENCIES = "USD EUR GBP JPY CHF CAD AUD INR SEK NOK BRL MXN".split()
SKIES = ["sunny", "cloudy", "rainy", "windy", "foggy", "clear"]
NAMES = {
    "weather": "get_weather get_weather weather get_current_weather weather_lookup getWeather",
    "search": "search web_search search_web google",
    "event": "add_event create_event calendar_add",
    "convert": "convert convert_currency exchange",
    "mail": "send_email email send_mail",
    "timer": "set_timer start_timer timer",
    "stock": "get_stock_price stock_price quote",
}
DESCRIPTIONS = {
    "weather": [
        "Get the current weather for a city.", "Get weather", "Current weather in a location."
    ],
    "search": ["Search the web.", "Web search"],
    "event": ["Add an event to the calendar."],
    "convert": ["Convert an amount between currencies."],
    "mail": ["Send an email."],
    "timer": ["Start a timer."],
    "stock": ["Get the price of a stock."],
}  # fmt: skip
FAMILIES = {text: purpose for purpose, texts in DESCRIPTIONS.items() for text in texts}


def family(tool: Tool) -> str:
    """Name a tool's purpose. A request does not distinguish two tools of one family."""
    function = tool["function"]
    return FAMILIES.get(function["description"], str(function["name"]))


def make_known(source: Source, purpose: str, properties: Mapping[str, Any]) -> Tool:
    description = source.pick(DESCRIPTIONS[purpose])
    return make_tool(name_of(source, purpose), description, properties)


def name_of(source: Source, purpose: str) -> str:
    """Choose a tool's name, often one that only the prompt shows."""
    name = source.pick(NAMES[purpose].split())
    if source.chance(0.5):
        return name
    word = source.plain_word()
    return source.pick([f"{name}_{word}", f"{word}_{name}", f"{source.pick(VERBS)}_{word}", word])


def draw_call_count(source: Source, parallel_share: float) -> int:
    """Draw the number of calls for a request."""
    return source.pick([2, 2, 3]) if source.chance(parallel_share) else 1


WEATHER = Phrasings(
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
)


def weather(source: Source) -> ToolTurn:
    key = source.pick(["city", "city", "location"])
    cities = list(dict.fromkeys(source.city() for _ in range(draw_call_count(source, 0.4))))
    results = [{"temp_c": source.number(-9, 38), "sky": source.pick(SKIES)} for _ in cities]
    report = " ".join(
        f"It is {result['temp_c']} °C and {result['sky']} in {city}."
        for result, city in zip(results, cities, strict=True)
    )
    user = source.ask(WEATHER, listed(cities))
    tool = make_known(source, "weather", strings(key))
    return ToolTurn(tool, user, [{key: city} for city in cities], results, report)


SEARCH = Phrasings(
    "Search for {}.",
    "Look up {} for me.",
    "Please find information about {}.",
    "Can you google {}?",
    "search {}",
    "Find out more on {}.",
    "Search the web for {}",
    "I want to read about {}. Search it.",
)


def search(source: Source) -> ToolTurn:
    key = source.pick(["query", "query", "q", "text"])
    tool = make_known(source, "search", strings(key))
    query = source.phrase(1, 3)
    if source.chance(0.3):
        template = source.pick(["history of {}", "best {}", "news about {}", "cost of {}"])
        query = template.format(query)
    title = source.pick(["Guide to ", "All about ", ""]) + source.phrase(1, 2)
    author, year = source.name(), source.number(1990, 2026)
    results = [{"title": title, "author": author, "year": year}]
    report = f'I found "{title}" by {author} ({year}).'
    return ToolTurn(tool, source.ask(SEARCH, query), [{key: query}], results, report)


EVENT = Phrasings(
    "Add {t} on {d} to my calendar.",
    "Schedule {t} for {d}.",
    "Put {t} in my calendar on {d}.",
    "I have {t} on {d}, please add it.",
    "Can you book {t} on {d}?",
    "On {d} I have {t}. Add it please.",
    "Enter {t} on {d} in my calendar.",
    "Plan {t} for {d}.",
    "Remember {t} on {d}.",
)


def event(source: Source) -> ToolTurn:
    title_key, date_key = source.pick([("title", "date"), ("name", "day"), ("event", "date")])
    tool = make_known(source, "event", strings(title_key, date_key))
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
    return ToolTurn(tool, user, [{title_key: title, date_key: date}], results, report)


CONVERT = Phrasings(
    "Convert {a} {f} to {t}.",
    "How much is {a} {f} in {t}?",
    "What are {a} {f} in {t}?",
    "I need {a} {f} in {t}.",
    "{a} {f} to {t} please",
    "Change {a} {f} into {t}.",
)


def convert(source: Source) -> ToolTurn:
    amount_key, from_key, to_key = source.pick(
        [
            ("amount", "from", "to"),
            ("value", "source", "target"),
            ("amount", "from_currency", "to_currency"),
        ]
    )
    properties = {amount_key: {"type": "number"}, **strings(from_key, to_key)}
    tool = make_known(source, "convert", properties)
    old, new = source.random.sample(CURRENCIES, 2)
    amount = source.pick(
        [source.number(1, 999), source.number(1, 50) * 10, round(source.random.uniform(1, 99), 2)]
    )
    result = round(amount * source.random.uniform(0.3, 3), 2)
    user = source.ask(CONVERT, a=amount, f=old, t=new)
    arguments = {amount_key: amount, from_key: old, to_key: new}
    report = f"{amount} {old} is {result} {new}."
    return ToolTurn(tool, user, [arguments], [{"result": result}], report)


MAIL = Phrasings(
    "Send an email to {e} about {t}.",
    "Email {e} about {t}.",
    "Write to {e} about {t}.",
    "Please mail {e} regarding {t}.",
    "Drop {e} a note about {t}.",
    "Send an email about {t} to {e}.",
    "{e} should get an email about {t}.",
)


def mail(source: Source) -> ToolTurn:
    person_key, topic_key = source.pick(
        [("to", "subject"), ("recipient", "subject"), ("to", "body")]
    )
    tool = make_known(source, "mail", strings(person_key, topic_key))
    person = source.email() if source.chance(0.6) else source.name()
    topic = source.phrase(1, 3)
    user = source.ask(MAIL, e=person, t=topic)
    arguments = {person_key: person, topic_key: topic}
    return ToolTurn(tool, user, [arguments], [{"status": "sent"}], "Result: status is sent.")


TIMER = Phrasings(
    "Set a timer for {} minutes.",
    "Start a {} minute timer.",
    "Remind me in {} minutes.",
    "timer {} minutes",
)


def timer(source: Source) -> ToolTurn:
    key = source.pick(["minutes", "minutes", "duration"])
    tool = make_known(source, "timer", {key: {"type": "integer"}})
    minutes = [source.number(1, 120) for _ in range(draw_call_count(source, 0.3))]
    user = source.ask(TIMER, listed([str(count) for count in minutes]))
    results = [{"status": "started"}] * len(minutes)
    report = "Result: status is started."
    return ToolTurn(tool, user, [{key: count} for count in minutes], results, report)


STOCK = Phrasings(
    "What is the stock price of {}?",
    "Price of {}",
    "How is {} doing on the stock market?",
    "Get the price for {}.",
    "stock {}",
)


def stock(source: Source) -> ToolTurn:
    key = source.pick(["symbol", "ticker"])
    tool = make_known(source, "stock", strings(key))
    count = draw_call_count(source, 0.35)
    symbols = list(dict.fromkeys(source.letters(2, 5) for _ in range(count)))
    prices = [round(source.random.uniform(2, 900), 2) for _ in symbols]
    report = " ".join(
        f"The price of {symbol} is {price}." for symbol, price in zip(symbols, prices, strict=True)
    )
    user = source.ask(STOCK, listed(symbols))
    results = [{"price": price} for price in prices]
    return ToolTurn(tool, user, [{key: symbol} for symbol in symbols], results, report)


KNOWN: tuple[Callable[[Source], ToolTurn], ...] = (
    weather, search, event, convert, mail, timer, stock,
)  # fmt: skip
