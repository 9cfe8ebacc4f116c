"""Find the Chromium that page tests and screenshots run in, or install it.

As a script it installs Debian's Chromium if there is none, provided that it runs as root on Debian or a derivative.
Otherwise it prints a message and exits with code 0: tests that need a browser are then skipped.
"""

import argparse
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
"""Containers have neither a sandbox nor a GPU for rendering."""


def find_chromium() -> str | None:
    """The path of the browser in the environment variable CHROME, or of an installed one; None if there is none."""
    chrome = os.environ.get("CHROME")
    if chrome:
        return shutil.which(chrome)
    paths = (shutil.which(name) for name in (*NAMES, *APPLICATIONS))
    return next((path for path in paths if path is not None), None)


def install_chromium() -> str | None:
    """Install Debian's Chromium, if this is Debian and we are root. Returns its path, or None."""
    is_debian_root = hasattr(os, "geteuid") and os.geteuid() == 0 and Path("/etc/debian_version").exists()
    if not is_debian_root or shutil.which("apt-get") is None:
        return None
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "chromium"]):
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False)
    return find_chromium()


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    path = find_chromium()
    if path is None:
        print("Chromium is not installed; trying to install it from Debian.", file=sys.stderr)
        path = install_chromium()
    if path is None:
        print("Chromium could not be installed; tests of the page will be skipped.", file=sys.stderr)
    else:
        print(f"Tests of the page use {path}.", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
