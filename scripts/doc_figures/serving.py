"""Tables and figures of the pages about serving: the limits of a server, and what it was measured at."""

import dataclasses
from collections.abc import Iterator

from doc_figures.markers import cases, figure, table
from regard.serve.body_limits import BODY_SECONDS
from regard.serve.limits import Limits

Row = tuple[object, ...]

_LIMITS = {
    "body_bytes": ("size of a request", "413", ""),
    "image_body_bytes": ("size of a request with images", "413", ""),
    "image_pixels": ("pixels of an image", "413", ""),
    "total_image_pixels": ("pixels of all images of a request", "413", ""),
    "items": ("texts or images in a request", "413", ""),
    "characters": ("characters of a text", "413", ""),
    "total_characters": ("characters of all texts of a request", "413", ""),
    "new_tokens": ("tokens of an output", "413", "--max-new-tokens"),
    "beam_size": ("beams of a search, and outputs of an input", "413", ""),
    "waiting": ("requests that wait for a model", "429", "--max-waiting"),
    "threads": ("requests that a model works on together; others wait", "", ""),
    "seconds": ("time that a request may wait and take", "503", "--timeout"),
    "header_bytes": ("size of the headers", "400", ""),
    "header_seconds": ("time for the headers to arrive", "408, closed", ""),
    "send_seconds": ("time in which a client reads nothing of its response", "closed", ""),
    "keep_alive_seconds": ("time between two requests of a connection", "closed", ""),
    "connections": ("open connections of a process", "503", ""),
}
"""What each limit is on, what happens beyond it, and the option that sets it."""


@table("limit | default | beyond it | option")
def serve_limits() -> Iterator[Row]:
    limits = Limits()
    for field in dataclasses.fields(limits):
        what, beyond, option = _LIMITS[field.name]
        yield (what, _formatted(field.name, getattr(limits, field.name)), beyond, f"`{option}`" if option else "")
    yield ("time for a request's body to arrive", _formatted("seconds", BODY_SECONDS), "408", "")


@table("server | texts a second | p50 | p95 | p99 | wrong answers")
def serve_load() -> Iterator[Row]:
    for one in cases("serve"):
        yield one["case"], one["ours"], *(f"{one[key]:,.0f} ms" for key in ("p50_ms", "p95_ms", "p99_ms")), one["wrong"]


@figure
def serve_memory() -> str:
    """What the benchmark of memory did and found, as one sentence."""
    (one,) = cases("serve-memory")
    _, middle, last = one["rss_mb_thirds"]
    return (
        f"Over {one['requests']:,} requests and {one['aborted_connections']:,} connections that were given up, "
        f"the process had {middle:,.0f} MB on average in the middle third and {last:,.0f} MB in the last one"
    )


@table("texts | language | accuracy among four | accuracy among all | mean confidence")
def language_identification() -> Iterator[Row]:
    for one in cases("language-identification"):
        every = one["all"]
        yield one["case"], one["language"], one["four"]["accuracy"], every["accuracy"], every["confidence"]


@figure
def names_in_tags() -> str:
    (case,) = cases("tag-projection")
    return f"{case['exact']} of {case['tags']}"


def _formatted(name: str, value: float) -> str:
    if name.endswith("bytes"):
        return f"{value / (1 << 20):g} MiB" if value >= 1 << 20 else f"{value / 1024:g} KiB"
    return f"{value:g} s" if "seconds" in name else f"{value:,}"
