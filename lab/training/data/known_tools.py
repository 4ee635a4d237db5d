"""Turns that call well-known tools: weather, search, calendar, money, mail, timer, stocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from eaglegate.lab.training.data.source import Source, phrasings
from eaglegate.lab.training.data.tool_parts import draw_call_count, listed, strings, tool, turn
from eaglegate.lab.training.data.turn import Tool, ToolTurn
from eaglegate.lab.training.data.values import VERBS

CURRENCIES = "USD EUR GBP JPY CHF CAD AUD INR SEK NOK BRL MXN".split()
SKIES = ["sunny", "cloudy", "rainy", "windy", "foggy", "clear"]

NAMES = {
    "weather": (
        "get_weather",
        "get_weather",
        "weather",
        "get_current_weather",
        "weather_lookup",
        "getWeather",
    ),
    "search": ("search", "web_search", "search_web", "google"),
    "event": ("add_event", "create_event", "calendar_add"),
    "convert": ("convert", "convert_currency", "exchange"),
    "mail": ("send_email", "email", "send_mail"),
    "timer": ("set_timer", "start_timer", "timer"),
    "stock": ("get_stock_price", "stock_price", "quote"),
}
DESCRIPTIONS = {
    "weather": (
        "Get the current weather for a city.",
        "Get weather",
        "Current weather in a location.",
    ),
    "search": ("Search the web.", "Web search"),
    "event": ("Add an event to the calendar.",),
    "convert": ("Convert an amount between currencies.",),
    "mail": ("Send an email.",),
    "timer": ("Start a timer.",),
    "stock": ("Get the price of a stock.",),
}
FAMILIES = {text: purpose for purpose, texts in DESCRIPTIONS.items() for text in texts}


def family(tool: Tool) -> str:
    """Name a tool's purpose. A request does not distinguish two tools of one family."""
    function = tool["function"]
    name: str = function["name"]
    return FAMILIES.get(function["description"], name)


def make_known(source: Source, purpose: str, properties: Mapping[str, Any]) -> Tool:
    description = source.pick(DESCRIPTIONS[purpose])
    return tool(name_of(source, purpose), description, properties)


def name_of(source: Source, purpose: str) -> str:
    """Choose a tool's name; in training often a name that only the prompt shows."""
    name = source.pick(NAMES[purpose])
    if source.is_held_out or source.chance(0.5):
        return name
    word = source.plain_word()
    return source.pick([f"{name}_{word}", f"{word}_{name}", f"{source.pick(VERBS)}_{word}", word])


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
    cities = list(dict.fromkeys(source.city() for _ in range(draw_call_count(source, 0.4))))
    results = [{"temp_c": source.number(-9, 38), "sky": source.pick(SKIES)} for _ in cities]
    report = " ".join(
        f"It is {result['temp_c']} °C and {result['sky']} in {city}."
        for result, city in zip(results, cities, strict=True)
    )
    user = source.split(WEATHER, 0.3).format(listed(cities))
    return turn(
        make_known(source, "weather", strings(key)),
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
    search_tool = make_known(source, "search", strings(key))
    query = source.phrase(1, 3)
    if source.chance(0.3):
        query = source.pick(["history of {}", "best {}", "news about {}", "cost of {}"]).format(
            query
        )
    title = source.pick(["Guide to ", "All about ", ""]) + source.phrase(1, 2)
    author, year = source.name(), source.number(1990, 2026)
    results = [{"title": title, "author": author, "year": year}]
    report = f'I found "{title}" by {author} ({year}).'
    return turn(
        search_tool, source.split(SEARCH, 0.3).format(query), [{key: query}], results, report
    )


EVENT = phrasings(
    "Add {t} on {d} to my calendar.",
    "Schedule {t} for {d}.",
    "Put {t} in my calendar on {d}.",
    "I have {t} on {d}, please add it.",
    "Can you book {t} on {d}?",
    "On {d} I have {t}. Add it please.",
    "Enter {t} on {d} in my calendar.",
    "Plan {t} for {d}.",
    "Remember {t} on {d}.",
    "Please plan {t} on {d}.",
)


def event(source: Source) -> ToolTurn:
    title_key, date_key = source.pick([("title", "date"), ("name", "day"), ("event", "date")])
    event_tool = make_known(source, "event", strings(title_key, date_key))
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
    return turn(event_tool, user, [{title_key: title, date_key: date}], results, report)


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
    amount, source_key, target_key = source.pick(
        [
            ("amount", "from", "to"),
            ("value", "source", "target"),
            ("amount", "from_currency", "to_currency"),
        ]
    )
    properties = {amount: {"type": "number"}, **strings(source_key, target_key)}
    convert_tool = make_known(source, "convert", properties)
    source_currency, target_currency = source.random.sample(CURRENCIES, 2)
    sum_ = source.pick(
        [source.number(1, 999), source.number(1, 50) * 10, round(source.random.uniform(1, 99), 2)]
    )
    result = round(sum_ * source.random.uniform(0.3, 3), 2)
    return turn(
        convert_tool,
        source.ask(CONVERT, a=sum_, f=source_currency, t=target_currency),
        [{amount: sum_, source_key: source_currency, target_key: target_currency}],
        [{"result": result}],
        f"{sum_} {source_currency} is {result} {target_currency}.",
    )


MAIL = phrasings(
    "Send an email to {e} about {t}.",
    "Email {e} about {t}.",
    "Write to {e} about {t}.",
    "Please mail {e} regarding {t}.",
    "Drop {e} a note about {t}.",
    "Send an email about {t} to {e}.",
    "{e} should get an email about {t}.",
    "Send {e} a mail about {t}.",
)


def mail(source: Source) -> ToolTurn:
    recipient_key, topic_key = source.pick(
        [("to", "subject"), ("recipient", "subject"), ("to", "body")]
    )
    mail_tool = make_known(source, "mail", strings(recipient_key, topic_key))
    person = source.email() if source.chance(0.6) else source.name()
    topic = source.phrase(1, 3)
    user = source.ask(MAIL, e=person, t=topic)
    return turn(
        mail_tool,
        user,
        [{recipient_key: person, topic_key: topic}],
        [{"status": "sent"}],
        "Result: status is sent.",
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
    timer_tool = make_known(source, "timer", {key: {"type": "integer"}})
    minutes = [source.number(1, 120) for _ in range(draw_call_count(source, 0.3))]
    user = source.split(TIMER, 0.3).format(listed([str(count) for count in minutes]))
    results = [{"status": "started"} for _ in minutes]
    return turn(
        timer_tool, user, [{key: n} for n in minutes], results, "Result: status is started."
    )


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
    stock_tool = make_known(source, "stock", strings(key))
    symbols = list(
        dict.fromkeys(source.letters(2, 5) for _ in range(draw_call_count(source, 0.35)))
    )
    prices = [round(source.random.uniform(2, 900), 2) for _ in symbols]
    report = " ".join(
        f"The price of {symbol} is {price}." for symbol, price in zip(symbols, prices, strict=True)
    )
    user = source.split(STOCK, 0.3).format(listed(symbols))
    results = [{"price": price} for price in prices]
    return turn(stock_tool, user, [{key: symbol} for symbol in symbols], results, report)


KNOWN: tuple[Callable[[Source], ToolTurn], ...] = (
    weather,
    search,
    event,
    convert,
    mail,
    timer,
    stock,
)
