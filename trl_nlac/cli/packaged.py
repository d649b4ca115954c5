# Copyright 2020-2026 The HuggingFace Team. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""Files that come with the package: recipes, and configurations of Accelerate."""

from difflib import get_close_matches
from pathlib import Path

from .errors import CommandError


PACKAGE = Path(__file__).parents[1]


def find_yaml(option: str, folder: str, name: str) -> str:
    """
    Find the YAML file that an option names: a path, or the name of a file that comes with the package.

    Args:
        option (`str`):
            The option, for the error.
        folder (`str`):
            Folder of the package, `"recipes"` or `"accelerate_configs"`.
        name (`str`):
            Path, or name without its ending.

    Raises:
        CommandError: If there is neither.
    """
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
