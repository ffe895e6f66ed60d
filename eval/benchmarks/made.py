"""Questions about orders of a shop, which this code makes of small tables, the same every time.

An answer repeats what its prompt says: orders told in a letter become records, and calls of tools
pass on what other tools returned.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eval.benchmarks.questions import Question

QUESTIONS = 80  # of each benchmark

_FIRST = ("Anna", "Ben", "Clara", "Daniel", "Elena", "Farid", "Grace", "Hugo", "Ines", "Jonas")
_LAST = ("Almeida", "Becker", "Castillo", "Dubois", "Eriksen", "Fischer", "Grant", "Hoffmann")
_STREETS = ("Mill Lane", "Station Road", "Harbour Street", "Garden Row", "Church Hill", "Elm Walk")
_CITIES = ("Bristol", "Cork", "Dundee", "Exeter", "Galway", "Leeds", "Norwich", "Swansea")
_ARTICLES = (
    *("brass desk lamp", "oak bookshelf", "wool blanket", "garden hose", "steel kettle"),
    *("linen tablecloth", "folding chair", "picture frame", "copper pan", "wall clock"),
)

# Small models would repeat themselves without an end.
_TEXT = {"type": "string", "maxLength": 40}
_ORDER_NUMBER = {"type": "string", "pattern": "^A[0-9]{4}$"}


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_ITEMS = {
    "type": "array",
    "items": _object(article=_TEXT, quantity={"type": "integer"}, price={"type": "number"}),
}
_ORDER = {
    **{"number": _ORDER_NUMBER, "customer": _TEXT, "email": _TEXT},
    **{"street": _TEXT, "city": _TEXT, "items": _ITEMS},
}

# The schema of the records of `extraction`.
ORDERS = _object(orders={"type": "array", "items": _object(**_ORDER)})

_SHIPMENT = _object(
    order=_ORDER_NUMBER, recipient=_TEXT, address=_TEXT, contents={"type": "array", "items": _TEXT}
)
_TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }
    for name, description, parameters in (
        ("get_order", "Looks up an order by its number.", _object(number=_ORDER_NUMBER)),
        ("create_shipment", "Sends an order to its customer.", _SHIPMENT),
    )
]


def extraction(bench: str, title: str) -> Iterator[Question]:
    """Yields letters that tell of four orders, to be written as records of `ORDERS`."""
    for number, rng in _numbered(bench):
        letter = " ".join(_told(order, rng) for order in _orders(rng, 4))
        turn = f"Write every order in this letter as JSON:\n\n{letter}"
        yield Question(bench, title, (turn,), _where(number), f"{turn}\n\nThe orders as JSON:\n\n")


def tool_calls(bench: str, title: str) -> Iterator[Question]:
    """Yields chats in which one or two of four orders have been looked up and sent, and another
    has been looked up; the next call sends it."""
    for number, rng in _numbered(bench):
        orders = _orders(rng, 4)
        numbers = ", ".join(order["number"] for order in orders)
        task = (
            f"Look up each of the orders {numbers}, and create its shipment, one after the other."
        )
        messages: list[dict[str, Any]] = [{"role": "user", "content": task}]
        *done, last = orders[: rng.randint(2, 3)]
        for order in done:
            shipped = {"shipment": f"S{order['number'][1:]}", "status": "created"}
            messages += _called("get_order", {"number": order["number"]}, order)
            messages += _called("create_shipment", _shipment(order), shipped)
        *before, result = messages + _called("get_order", {"number": last["number"]}, last)
        turns = (result.pop("content"),)
        yield Question(
            *(bench, title, turns, _where(number)),
            before=tuple(before),
            tools=_TOOLS,
            sender=result,
        )


def _numbered(bench: str) -> Iterator[tuple[int, random.Random]]:
    return ((n, random.Random(f"{bench} {n}")) for n in range(1, QUESTIONS + 1))


def _where(number: int) -> str:
    return f"{Path(__file__)}, question {number}"


def _orders(rng: random.Random, count: int) -> list[dict[str, Any]]:
    """Returns orders as `ORDERS` has them, of different customers."""
    start = rng.randrange(1000, 9000)
    names = rng.sample([(first, last) for first in _FIRST for last in _LAST], count)
    return [
        {
            "number": f"A{start + 7 * n}",
            "customer": f"{first} {last}",
            "email": f"{first}.{last}@example.com".lower(),
            "street": f"{rng.randrange(1, 200)} {rng.choice(_STREETS)}",
            "city": rng.choice(_CITIES),
            "items": [
                {
                    "article": article,
                    "quantity": rng.randrange(2, 10),
                    "price": rng.randrange(500, 20000) / 100,
                }
                for article in rng.sample(_ARTICLES, rng.randint(1, 3))
            ],
        }
        for n, (first, last) in enumerate(names)
    ]


def _told(order: dict[str, Any], rng: random.Random) -> str:
    """Tells of an order in a sentence or two."""
    goods = ", ".join(
        f"{each['quantity']} x {each['article']} at {each['price']:.2f} euros each"
        for each in order["items"]
    )
    who, where = f"{order['customer']} ({order['email']})", f"{order['street']} in {order['city']}"
    return rng.choice(
        (
            f"{who} asked for {goods}; send order {order['number']} to {where}.",
            f"Order {order['number']} is from {who}: {goods}. The parcel goes to {where}.",
            f"To {where} goes order {order['number']}: {who} wants {goods}.",
        )
    )


def _shipment(order: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments with which an order is sent."""
    return {
        "order": order["number"],
        "recipient": order["customer"],
        "address": f"{order['street']}, {order['city']}",
        "contents": [f"{each['quantity']} x {each['article']}" for each in order["items"]],
    }


def _called(name: str, arguments: dict[str, Any], result: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the messages of a call and its result."""
    id = f"{name[0]}{next(iter(arguments.values())):0>8}"  # nine characters, as Mistral's
    call = {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": name, "tool_call_id": id, "content": json.dumps(result)},
    ]
