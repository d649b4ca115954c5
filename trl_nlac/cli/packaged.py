# SPDX-License-Identifier: Apache-2.0

"""Files that come with the package: recipes, and configurations of Accelerate."""

from difflib import get_close_matches
from pathlib import Path

from .errors import CommandError


PACKAGE = Path(__file__).parents[1]


def find_yaml(option: str, folder: str, name: str) -> str:
    """Find the YAML file of an option: a path, or the name of a file in a `folder` of the package, without ending."""
    if Path(name).is_file():
        return name
    files = {path.stem: path for path in sorted((PACKAGE / folder).glob("*.yaml"))}
    if name in files:
        return str(files[name])
    close = get_close_matches(name, files, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    has = ", ".join(files)
    raise CommandError(f"{option} {name}: there is no such file, and none of the package's. It has: {has}.{hint}")


def find_path(path: str | None) -> str | None:
    """Find a path that starts with `trl_nlac/`, as in the repository, in the installed package."""
    if path is None or Path(path).exists():
        return path
    first, _, rest = path.partition("/")
    return str(PACKAGE / rest) if first == PACKAGE.name and (PACKAGE / rest).exists() else path
