"""One run of a sweep, in a process of its own: `python -m regard.lab.ablate.worker OUT KEY DEVICE`.

It trains the run, or continues it, and measures it. What goes wrong is the last line that it prints.
"""

import json
import shutil
import sys
from pathlib import Path

import torch

from regard.errors import UserError
from regard.files import write_text
from regard.kernels.dispatch import select_device
from regard.lab.ablate.measure import measure
from regard.task.recipe_io import read_recipe
from regard.task.run import train
from regard.train.callback import PrinterCallback
from regard.train.runtime import DivergedError, StoppedError

DIVERGED = 3
"""The exit code of a run whose loss is not finite; it would end so again."""
STOPPED = 130
"""The exit code of a run that was stopped and can be continued."""


def main(out: Path, key: str, device: str) -> int:
    """Train and measure the run `key` of a sweep; gives the exit code."""
    folder, name = out / "runs" / key, key.rpartition("-s")[0]
    try:
        selected = select_device(device)
        recipe = read_recipe(out / "recipes" / f"{key}.toml")
        resume = (folder / "recipe.toml").is_file()
        train(recipe, folder, resume=resume, device=selected, callback=PrinterCallback())
        found = {"key": key, **measure(name, folder, selected)}
    except StoppedError as stopped:
        print(stopped)
        return STOPPED
    except DivergedError as error:
        print(f"regard: {error}")
        return DIVERGED
    except UserError as error:
        print(f"regard: {error}")
        return 2
    except torch.OutOfMemoryError:
        print(f"regard: it ran out of memory on {device}.")
        return 2
    path = out / "measured" / f"{key}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(found, ensure_ascii=False, indent=1) + "\n")
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)  # large, and only an unfinished run needs them
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
