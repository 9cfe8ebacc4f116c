"""Tables of what the server's translation protocols do besides translating."""

from collections.abc import Iterator

from doc_figures.markers import cases, figure, table

Row = tuple[object, ...]


@table("texts | language | accuracy among four | accuracy among all | mean confidence")
def language_identification() -> Iterator[Row]:
    for one in cases("language-identification"):
        every = one["all"]
        yield one["case"], one["language"], one["four"]["accuracy"], every["accuracy"], every["confidence"]


@figure
def names_in_tags() -> str:
    (case,) = cases("tag-projection")
    return f"{case['exact']} of {case['tags']}"
