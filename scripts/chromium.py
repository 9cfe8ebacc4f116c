"""A Chromium for the tests of the page and for screenshots: found, or installed from Debian where that is possible.

Run as a program it installs one if there is none, this is Debian or like it, and we may. If it cannot, it says so and
ends well: the tests that need a browser are then skipped.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge")
APPLICATIONS = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
FLAGS = ("--no-sandbox", "--disable-gpu")
"""For containers, where there is neither a sandbox nor a graphics card."""


def find_chromium() -> str | None:
    """The browser that CHROME names, or one that is installed; None where there is none."""
    named = os.environ.get("CHROME")
    if named:
        return shutil.which(named)
    found = (shutil.which(name) for name in (*NAMES, *APPLICATIONS))
    return next((path for path in found if path is not None), None)


def install_chromium() -> str | None:
    """Install Debian's, if we are root there. What was found afterwards."""
    may = hasattr(os, "geteuid") and os.geteuid() == 0 and Path("/etc/debian_version").exists()
    if not may or shutil.which("apt-get") is None:
        return None
    surroundings = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "chromium"]):
        subprocess.run(command, env=surroundings, stdout=subprocess.DEVNULL, check=False)
    return find_chromium()


def main() -> int:
    found = find_chromium()
    if found is None:
        print("There is no Chromium here; trying to install Debian's.", file=sys.stderr)
        found = install_chromium()
    if found is None:
        print("There is no Chromium, and it could not be installed: tests of the page are skipped.", file=sys.stderr)
    else:
        print(f"The page is tested with {found}.", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
