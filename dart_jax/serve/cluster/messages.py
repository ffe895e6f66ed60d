"""What a replica sends about a request.

Errors are messages, too, since not every exception survives the way to another process.
"""

from __future__ import annotations

from typing import NamedTuple

from dart_jax.serving.request import Update


class Refused(NamedTuple):
    """The request is at fault: no replica can serve it.

    Attributes:
      message: says why.
    """

    message: str


class Busy(NamedTuple):
    """This replica has no room now, or is about to stop; another one may serve the request."""


# Updates that were produced while the last message was under way are sent together.
Message = list[Update] | Refused | Busy
