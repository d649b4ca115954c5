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

"""What is secret: by its name, as an `api_key`, or by its looks, as the password in a URL or a token of the Hub."""

import re
from typing import Any


HIDDEN = "<hidden>"

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")  # of snake_case, kebab-case and camelCase
# Words that make a name secret wherever they stand in it, and words that do so at its end: `api_key`, not `key_path`.
_ANYWHERE = {"apikey", "authorization", "credential", "passphrase", "passwd", "password", "secret"}
_AT_THE_END = {"auth", "bearer", "cookie", "key", "token"}
# A special token of a vocabulary, what is hidden already, or nothing.
_PUBLIC = re.compile(r"[<\[].*[>\]]|", re.DOTALL)
# Secrets within a text, each after what stays before it.
_LOOKS = (
    re.compile(r"(?P<before>[a-z][a-z\d+.-]*://)[^\s/?#'\"]+(?=@)", re.IGNORECASE),
    re.compile(r"(?P<before>\b(?:Bearer|Basic)\s+)[\w.~+/=-]{8,}", re.IGNORECASE),
    re.compile(
        r"(?P<before>)\b(?:hf_[A-Za-z\d]{10,}|sk-[\w-]{16,}|gh[a-z]_[A-Za-z\d]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}"
        r"|xox[a-z]-[\w-]{10,}|AKIA[A-Z\d]{16}|AIza[\w-]{30,}|eyJ[\w-]{8,}\.[\w-]+\.[\w-]+)"
    ),
)
# `name=value`, and `name: "value"` in quotes.
_ASSIGNED = re.compile(
    r"(?P<name>[\w-]+)(?P<sign>['\"]?\s*[=:]\s*(?P<quote>['\"])|=)(?P<value>(?(quote).*?(?=(?P=quote))|[^\s&,;'\")\]}]+))"
)


def is_secret(name: str) -> bool:
    """Whether what has this name, an option or a keyword, is secret."""
    words = _words(name)
    return not _AT_THE_END.isdisjoint(words[-1:]) or not _ANYWHERE.isdisjoint(words)


def hide_secrets(value: Any, name: str = "") -> Any:
    """
    Replace secrets by `"<hidden>"`.

    Args:
        value (`Any`):
            Anything. Containers are copied, and in them texts with secrets are replaced. Under a secret name all is
            secret but `None`, numbers, as in `max_tokens`, and special tokens of a vocabulary.
        name (`str`, *optional*):
            The option or keyword whose value it is.
    """
    if isinstance(value, dict):
        return {key: hide_secrets(item, name if is_secret(name) else str(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)) and type(value) in (list, tuple, set):
        return type(value)(hide_secrets(item, name) for item in value)
    if isinstance(value, str):
        return HIDDEN if is_secret(name) and not _PUBLIC.fullmatch(value) else hide_in_text(value)
    is_count = isinstance(value, (bool, int, float)) and _words(name)[-1:] != ["password"]  # as in `max_tokens`
    return value if is_count or value is None or not is_secret(name) else HIDDEN


def hide_in_text(text: str) -> str:
    """Replace the secrets that a text shows, such as an error message, by `<hidden>`."""
    for look in _LOOKS:
        text = look.sub(rf"\g<before>{HIDDEN}", text)
    return _ASSIGNED.sub(_hide_assigned, text)


def _words(name: str) -> list[str]:
    """Return the words of a name, in the singular."""
    return [word.lower().removesuffix("s") for word in _WORDS.findall(name)]


def _hide_assigned(match: re.Match[str]) -> str:
    value = match["value"]
    if not is_secret(match["name"]) or _PUBLIC.fullmatch(value) or value.isdecimal():
        return match[0]
    return f"{match['name']}{match['sign']}{HIDDEN}"
