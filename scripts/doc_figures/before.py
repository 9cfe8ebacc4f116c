"""Tables about the models before the Transformer."""

from collections.abc import Iterator

from doc_figures.markers import cases, table


@table("implementation | model | size | largest difference | regard is … times as fast")
def before_peers() -> Iterator[tuple[object, ...]]:
    for case in cases("before-peers"):
        largest = max(case["differences"].values())
        peer = f"{case['peer']} {case['version']}"
        yield peer, case["model"], case["case"], f"{largest:.1e}" if largest else "0", f"{case['ratio']:.2f}"


@table("model | n-grams | difference, log₁₀ p | difference, log₁₀ back-off | perplexity, KenLM | regard")
def kenlm() -> Iterator[tuple[object, ...]]:
    for case in cases("kenlm"):
        largest, perplexity = case["largest_difference_log10"], case["perplexity"]
        yield (
            case["model"],
            f"{case['entries']:,}",
            f"{largest['probability']:.1e}",
            f"{largest['back_off']:.1e}",
            perplexity["KenLM"],
            f"{perplexity['estimated by regard']:.4f}",
        )


@table("words | dimension | regard | gensim")
def word_vector_search() -> Iterator[tuple[object, ...]]:
    for case in cases("vector-files"):
        if case.get("case") == "near":
            times = (f"{case[name]:.0f} ms" for name in ("ours", "peer"))
            yield f"{case['words']:,}", case["dimension"], *times
