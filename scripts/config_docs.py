"""Generate docs/configuration.md, the reference of all settings of recipes, from the config classes.

python scripts/config_docs.py            write the page
python scripts/config_docs.py --check    change nothing; exit with code 1 if the page is out of date
"""

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from regard.config import Config
from regard.data.tokenizers.training import EncoderTokenizerConfig, TokenizerConfig
from regard.task.base import Recipe
from regard.task.registry import TASKS, get_task
from regard.task.settings import (
    ConfigField,
    adapt_field,
    config_fields,
    config_meaning,
    fixed_kind,
    recipe_exclusions,
    recipe_table,
    table_fields,
)

PAGE = Path(__file__).parent.parent / "docs" / "configuration.md"
Place = tuple[str, ConfigField, type[Recipe]]
"""A table in a recipe: its key, the field that holds it, and the class of the recipe."""
Row = tuple[ConfigField, tuple[str, ...]]
"""A key of a table, and the kinds of the table that have it."""

SHARED = {
    "TrainConfig": "Training: [train]",
    "ScheduleConfig": "Learning rate schedule: [train.schedule]",
    "OptimizerConfig": "Optimizer: [train.optimizer]",
    "LossConfig": "Loss: [train.loss]",
    "ExpectedGleuConfig": "Expected GLEU: [train.expected_gleu]",
    "ParallelConfig": "Several processes: [train.parallel]",
    "TokenizerConfig": "Tokenizer: [tokenizer]",
    "ExpectConfig": "Expected scores: [expect]",
    "ExpectedScore": "Scores of a test set: [expect.scores.NAME]",
}
"""The tables that recipes of most tasks share, by their config class, in the order of the page."""
TASK_TABLES = {
    "translation": {
        "TranslationDataConfig": "Sentence pairs: [data]",
        "CorpusConfig": "A source of sentence pairs",
        "FilterConfig": "Filters: [data.filter]",
        "TextAugmentConfig": "Augmentation of text: [data.augment]",
        "TranslationTokenizerConfig": "Tokenizer of a translation model",
        "TranslationWordVectorsConfig": "Word vectors: [word_vectors]",
        "WordVectorsConfig": "A file of word vectors",
        "DecodeConfig": "Decoding: [decode]",
        "LengthPenalty": "Length penalty: [decode.length_penalty]",
        "ScoreConfig": "Scoring: [score]",
    },
    "language-modeling": {
        "LanguageModelingDataConfig": "Texts: [data]",
        "TextConfig": "A source of text",
        "LanguageModelingTokenizerConfig": "Tokenizer of a language model",
    },
    "masked-lm": {
        "MaskingConfig": "Masking: [masking]",
        "MaskedLMTokenizerConfig": "Tokenizer of a masked language model",
    },
    "text-classification": {
        "TextClassificationDataConfig": "Labeled texts: [data]",
        "LabeledConfig": "A source of labeled texts",
    },
    "token-classification": {
        "TokenClassificationDataConfig": "Tagged sentences: [data]",
        "TaggedConfig": "A source of tagged sentences",
    },
    "image-classification": {
        "ImageClassificationDataConfig": "Images: [data]",
        "ImagesConfig": "A source of images",
        "AugmentConfig": "Augmentation of images: [augment]",
    },
    "parsing": {
        "ParsingDataConfig": "Trees: [data]",
        "TreesConfig": "A source of trees",
        "ParsingTokenizerConfig": "Tokenizer of a parser",
    },
    "word-vectors": {
        "WordVectorsDataConfig": "Texts and windows: [data]",
        "WordsConfig": "Words: [data.words]",
        "VectorTrainConfig": "Training word vectors: [train]",
        "VectorScheduleConfig": "Learning rate of word vectors: [train.schedule]",
    },
}
"""The tables of each task; one that an earlier task has too stands there."""
MODEL_TABLES = {
    "EncoderDecoderConfig": "Encoder–decoder",
    "LanguageModelConfig": "Language model",
    "EncoderConfig": "Encoder",
    "VisionTransformerConfig": "Vision transformer",
    "NgramConfig": "N-gram model",
    "WindowLMConfig": "Window network",
    "DNN1Config": "Network over one-hot words (DNN1)",
    "DNN2Config": "Network over embeddings (DNN2)",
    "ContextConfig": "Network over context vectors",
    "RecurrentLMConfig": "Recurrent language model",
    "BidirectionalLMConfig": "Bidirectional language model (ELMo)",
    "RecurrentConfig": "Recurrent encoder–decoder",
    "RecurrentAttentionModelConfig": "Recurrent encoder–decoder with attention",
    "RecurrentAttentionConfig": "Attention of a recurrent decoder",
    "BahdanauConfig": "Recurrent decoder",
    "NoisyTopKConfig": "Experts between recurrent layers",
    "GnmtConfig": "GNMT",
    "DeepAttConfig": "Deep-Att",
    "ConvolutionalConfig": "Convolutional encoder–decoder (ConvS2S)",
    "ByteNetConfig": "ByteNet",
    "ConvolutionalLMConfig": "Convolutional language model",
    "SkipGramConfig": "Skip-gram",
    "CbowConfig": "Continuous bag of words",
    "GloveConfig": "GloVe",
    "SoftmaxConfig": "Loss of word vectors",
    "SubwordsConfig": "Character n-grams",
    "StackConfig": "Layers",
    "MultiHeadConfig": "Attention",
    "FeedForwardConfig": "Feed-forward network",
    "DensePrefixConfig": "First layers with another feed-forward network",
    "NormConfig": "Norm",
    "EmbeddingConfig": "Embedding",
    "SinusoidalConfig": "Positional encoding",
    "LinearScaling": "RoPE scaling",
    "LearnedGridConfig": "Positional encoding of patches",
    "PixelsConfig": "Pixels",
    "MaskedLMHeadConfig": "Head of a masked language model",
    "ClassificationHeadConfig": "Head of a text classifier",
    "TokenClassificationHeadConfig": "Head of a token classifier",
}
"""The architectures and their parts, by the first of their config classes."""
TITLES = SHARED | {name: title for tables in TASK_TABLES.values() for name, title in tables.items()} | MODEL_TABLES
SAME_KEYS: dict[type[Config], type[Config]] = {EncoderTokenizerConfig: TokenizerConfig}
"""Config classes that have no section, because another class has the same keys."""

INTRODUCTION = """# Configuration

Every setting of every recipe: its key, type, default and meaning. This page is generated from the code by
`python scripts/config_docs.py`; a test checks that it is up to date. The same on the command line:

```sh
regard settings                      # all tables
regard settings train.schedule       # the keys of one table
regard settings warmup               # all keys that contain a word
```

## Recipes and keys

A recipe is a [TOML](https://toml.io) file that says everything a training run depends on: the data, the tokenizer, the
model, the training, and what to expect of the result. A key that is left out has its default. Many recipes ship with
regard, and any of them can be the start of one of your own:

```sh
regard recipes                       # list them
regard recipe quick > my.toml        # copy one of them
regard recipe quick --resolved       # print it with every default filled in
```

A small recipe:

```toml
description = "English to German, from two files of mine."
task = "translation"

[data]
train = [{ source = "train.en", target = "train.de" }]

[model]
width = 256
encoder = { layers = 4 }
decoder = { layers = 4 }

[train]
steps = 20_000
schedule = { lr = 0.001, warmup_steps = 1_000 }
```

On this page a key has its full, dotted name: `train.schedule.lr` is the key `lr` of the table `[train.schedule]`. The
option `--set` takes the same names, and overrides a recipe without editing it:

```sh
regard train quick --set train.steps=1000 --set train.schedule.lr=0.003
regard train quick --set data.train.0.weight=2 --set model.encoder.attention.pattern="sliding(16)"
```

- `N` is the index of an entry in a list, counted from 0: `data.train.0.path` is the path of the first source.
- `NAME` is a name that you choose: `[data.test.news]` is a test set called news.
- A default of *required* means that the key must be given if its table is given. *Not set* means that there is no
  default; the description says what happens then.
- Tables with a `kind` come in several kinds. Keys that only some of the kinds have name them in their description.
- Unknown keys, and values that do not fit, are errors that name the key.
- Paths in a recipe are relative to the folder of its file, paths in `--set` to the current folder.
"""
MODELS_INTRODUCTION = """## Models

The table `[model]` describes one of four architectures, which the task determines. What follows from the data cannot be
given: vocabulary, special tokens, labels, image size. With `init_from`, keys that are left out are as in that model.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description="Generate docs/configuration.md from the config classes.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if the page is out of date")
    check, text = parser.parse_args().check, render()
    outdated = not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text
    if check and outdated:
        print("docs/configuration.md is out of date. Run `python scripts/config_docs.py`.", file=sys.stderr)
        return 1
    if outdated:
        PAGE.write_text(text, encoding="utf-8")
    return 0


def render() -> str:
    """The complete page."""
    tables = _find_tables()
    unknown = [name for name in tables if name not in TITLES]
    assert not unknown, f"no title for {unknown}"
    parts = [INTRODUCTION, "## What recipes share\n", "### Top level\n"]
    parts.append(_rows("", [(one, ()) for one in config_fields(Recipe)], _recipe("translation")))
    parts += [_section(name, f"### {title}", tables) for name, title in SHARED.items()]
    parts.append("## Tasks\n")
    for task, names in TASK_TABLES.items():
        parts += [_task_section(task), *(_section(name, f"#### {title}", tables) for name, title in names.items())]
    parts.append(MODELS_INTRODUCTION)
    parts += [_section(name, f"### {title}", tables) for name, title in MODEL_TABLES.items()]
    return "\n".join(parts)


def _recipe(task: str) -> type[Recipe]:
    return get_task(task).recipe_class()


def _find_tables() -> dict[str, list[Place]]:
    """Every place of every table: its key, the field that holds it, and the recipe, by its first config class."""
    found: dict[str, list[Place]] = {}
    for task in TASK_TABLES:
        for key, table, recipe in _places("", recipe_table(_recipe(task)), _recipe(task)):
            table = _with_section(table)
            found.setdefault(table.tables[0].__name__, []).append((key, table, recipe))
    assert set(TASK_TABLES) == set(TASKS)
    return found


def _places(prefix: str, table: ConfigField, recipe: type[Recipe]) -> Iterator[Place]:
    for one, _ in table_fields(table):
        key = f"{prefix}{one.name}"
        one = adapt_field(key, one, recipe)
        if one.tables and key not in recipe_exclusions(recipe):
            key = f"{key}.{one.placeholder}".rstrip(".")
            if key != "model":
                yield key, one, recipe
                yield from _places(f"{key}.", one, recipe)
                continue
            for config in one.tables:
                yield from [(key, (each := _only(one, config)), recipe), *_places(f"{key}.", each, recipe)]


def _with_section(table: ConfigField) -> ConfigField:
    """A table by the config classes that have a section."""
    return replace(table, tables=tuple(SAME_KEYS.get(config, config) for config in table.tables))


def _only(table: ConfigField, config: type[Config]) -> ConfigField:
    """A table of one of its kinds."""
    return ConfigField(table.name, table.type, True, {"kind": fixed_kind(config)}, table.meaning, (config,))


def _task_section(task: str) -> str:
    """The tables of a task's recipes that other tasks do not have, with links."""
    recipe = _recipe(task)
    own: list[Row] = [(one, ()) for one in config_fields(recipe) if one.name not in Recipe.model_fields]
    title = task.replace("-", " ").capitalize().replace("Masked lm", "Masked language modeling")
    unused = "".join(
        f"\n\n`train.{key}` cannot be given: {reason}." for key, reason in recipe.unused_train_keys.items()
    )
    return f'### {title}\n\n`task = "{task}"`{unused}\n\n{_rows("", own, recipe)}'


def _section(name: str, heading: str, tables: dict[str, list[Place]]) -> str:
    """A heading, what the table is, where it can be given, and its keys."""
    prefix, table, recipe = tables[name][0]
    keys = list(dict.fromkeys(key for key, _, _ in tables[name]))
    config = table.tables[0]
    parts = [f"{heading}\n"]
    if len(table.tables) > 1:
        parts.append("".join(f"- `{fixed_kind(one)}`: {config_meaning(one)}\n" for one in table.tables))
    else:
        table = replace(table, default=recipe.head if prefix == "model.head" else None)
        parts.append(f"{config_meaning(config)}\n")
    if len(keys) > 1 or f"[{keys[0]}]" not in heading:
        parts.append(f"{'Tables' if len(keys) > 1 else 'Table'}: {', '.join(f'`[{key}]`' for key in keys)}.\n")
    rows = table_fields(table)
    if fixed_kind(config) is not None:  # what the kinds are is said above
        rows[0] = (replace(rows[0][0], meaning=f"{rows[0][0].meaning.partition('. ')[0]}."), ())
    base = next((one for one in config.__mro__[1:] if one.__name__ in SHARED and issubclass(one, Config)), None)
    if base is not None and set(base.model_fields) <= set(config.model_fields):
        parts.append(f"It has the keys of [{_title(base.__name__)}](#{_anchor(TITLES[base.__name__])}), and:\n")
        rows = [row for row in rows if row[0] not in config_fields(base)]
    return "\n".join([*parts, _rows(f"{prefix}.", rows, recipe)])


def _rows(prefix: str, rows: Sequence[Row], recipe: type[Recipe]) -> str:
    lines = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for one, kinds in rows:
        key = f"{prefix}{one.name}"
        if key in recipe_exclusions(recipe) and not key.startswith("train."):
            continue
        one = _with_section(adapt_field(key, one, recipe))
        default = "" if one.default_text == "{  }" or key in ("model", "model.head") else one.default_text
        if default not in ("", "required", "not set"):
            default = f"`{default}`"
        lines.append(f"| `{key}` | {_cell(_type(one))} | {_cell(default)} | {_cell(_meaning(one, kinds))} |")
    return "\n".join([*lines, ""])


def _type(one: ConfigField) -> str:
    """The type; of a table, links to its sections."""
    if not one.tables:
        return re.sub(r'("[^"]*")', r"`\1`", one.type)
    names = [config.__name__ for config in one.tables] if one.name == "model" else [one.tables[0].__name__]
    if one.name == "head":  # another one in each task
        names = [name for name, title in MODEL_TABLES.items() if title.startswith("Head ")]
    links = [f"[{_title(name)}](#{_anchor(TITLES[name])})" for name in names]
    return f"{one.type}: {' or '.join(links)}"


def _title(name: str) -> str:
    """The title of a table without its key, in the middle of a sentence."""
    title = TITLES[name].partition(":")[0]
    return title if title[1].isupper() or title.startswith("RoPE") else title[0].lower() + title[1:]


def _anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _meaning(one: ConfigField, kinds: tuple[str, ...]) -> str:
    meaning = one.meaning or " ".join(config_meaning(one.tables[0]).partition("\n\n")[0].split())
    names = " or ".join(f'`"{kind}"`' for kind in kinds)
    return f"*Only with kind = {names}.* {meaning}" if kinds else meaning


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
