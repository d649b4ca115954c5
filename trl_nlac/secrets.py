# SPDX-License-Identifier: Apache-2.0

"""
What is secret: by its name, as an `api_key`, by its looks, as the password in a URL or a token of the Hub, or because
it was given to this process as a secret.
"""

import re
from collections.abc import Iterator
from typing import Any


HIDDEN = "<hidden>"

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")  # of snake_case, kebab-case and camelCase
# Ends of words that make a name secret wherever they stand in it, as in `PGPASSWORD`; and words that do so at its end:
# `api_key`, not `key_path`.
_ANYWHERE = ("apikey", "authorization", "credential", "passphrase", "passwd", "password", "secret")
_AT_THE_END = {"auth", "bearer", "cookie", "dbpass", "jwt", "key", "pass", "pgpass", "pwd", "token", "userpass"}
# Words after which a key is public, because data has such keys; any other word could be the name of a service.
_PUBLIC_KEYS = set(
    "answer cache column dict dictionary field foreign group index input item json label lookup map metric output "
    "partition primary prompt public question reward row sort target task text".split()
)
_PASSWORDS = ("pass", "passwd", "password", "pwd")  # ends of names under which numbers are secret, too
# A special token of a vocabulary, what is hidden already, or nothing.
_PUBLIC = re.compile(r"</?[\w|｜▁:-]+>|\[/?g?[A-Z_]+\]|")
# Secrets within a text, each after what stays before it. All patterns begin at the edge of a word, so that a long text
# costs no more than its length.
_LOOKS = (
    re.compile(r"(?P<before>(?<![a-z\d+.-])[a-z][a-z\d+.-]*://)[^\s/?#'\"]+(?=@)", re.IGNORECASE),
    re.compile(r"(?P<before>\bBearer\s+)[\w.~+/=-]{8,}", re.IGNORECASE),
    # Base64, and no word: "a basic understanding".
    re.compile(r"(?P<before>\b(?i:Basic)\s+)(?=[\w+/]*(?:\d|=|[a-z][A-Z]))[\w+/=]{8,}"),
    re.compile(
        r"(?P<before>)\b(?:hf_[A-Za-z\d]{10,}|sk-[\w-]{16,}|gh[a-z]_[A-Za-z\d]{16,}|github_pat_\w{16,}"
        r"|glpat-[\w-]{16,}|xox[a-z]-[\w-]{10,}|AKIA[A-Z\d]{16}|AIza[\w-]{30,}|eyJ[\w-]{8,}\.[\w-]+\.[\w-]+"
        r"|(?:gsk|r8)_[A-Za-z\d]{16,}|(?:nvapi|pplx|xai)-[\w-]{16,})"
    ),
    re.compile(r"(?P<before>-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?=-----END|\Z)", re.DOTALL),
)
# `name=value`, `name: "value"` in quotes, and `name: value` where the value is long and has a digit.
_ASSIGNED = re.compile(
    r"(?<![\w-])(?P<name>[\w-]+)(?P<sign>['\"]?\s*[=:]\s*(?P<quote>['\"])|=|:\s+(?=\S{8})(?=\S*\d))"
    r"(?P<value>(?(quote).*?(?=(?P=quote))|[^\s&,;'\")\]}]+))"
)
_SHORTEST = 8  # characters of a secret that is hidden wherever it stands; a shorter one could be any word

_given: set[str] = set()


def is_secret(name: str) -> bool:
    """Whether what has this name, an option or a keyword, is secret."""
    words = _words(name)
    before, last = ["", "", *words][-2:]
    ends_secretly = last in _AT_THE_END and not (last == "key" and before in _PUBLIC_KEYS)
    return ends_secretly or any(word.endswith(_ANYWHERE) for word in words)


def remember_secrets(value: Any, name: str = "") -> None:
    """
    Remember the secrets in a value that this process is given, such as its options: from now on [`hide_in_text`] knows
    them, whatever stands around them. Secrets in containers are found. `name` is its option or keyword.
    """
    _given.update(text for text in _secrets_in(value, name) if len(text) >= _SHORTEST and text not in HIDDEN)


def hide_secrets(value: Any, name: str = "") -> Any:
    """
    Replace secrets by `"<hidden>"`. Containers are copied, and in them texts with secrets are replaced. Under a secret
    name, that of the option or keyword, all is secret but `None`, special tokens of a vocabulary, and numbers, as in
    `max_tokens`; those of passwords are.
    """
    if isinstance(value, dict):
        return {key: hide_secrets(item, _name_of(key, name)) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)) and type(value) in (list, tuple, set):
        return type(value)(hide_secrets(item, name) for item in value)
    if isinstance(value, str):
        return HIDDEN if is_secret(name) and not _PUBLIC.fullmatch(value) else hide_in_text(value)
    is_count = isinstance(value, (bool, int, float)) and not "".join(_words(name)).endswith(_PASSWORDS)
    return value if is_count or value is None or not is_secret(name) else HIDDEN


def hide_in_text(text: str) -> str:
    """Replace the secrets that a text shows, such as an error message, by `<hidden>`."""
    return _ASSIGNED.sub(_hide_assigned, hide_in_observation(text))


def hide_in_observation(text: str) -> str:
    """
    Replace the secrets in a text that the policy learns from by `<hidden>`: those that were given, and what looks like
    one. What only stands after a secret's name stays, as in "no such key: order_12345".
    """
    for secret in sorted(_given, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    for look in _LOOKS:
        text = look.sub(rf"\g<before>{HIDDEN}", text)
    return text


def _secrets_in(value: Any, name: str) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _secrets_in(item, _name_of(key, name))
    elif isinstance(value, (list, tuple, set)):
        for item in value:
            yield from _secrets_in(item, name)
    elif isinstance(value, str) and is_secret(name):
        if not _PUBLIC.fullmatch(value):
            yield value
    elif isinstance(value, str):
        for look in _LOOKS:
            for match in look.finditer(value):
                found = match[0].removeprefix(match["before"])
                yield from (found, found.partition(":")[2])  # user and password, and the password


def _name_of(key: Any, outer: str) -> str:
    """The name of an entry: that of its container, where that is secret."""
    return outer if is_secret(outer) else str(key)


def _words(name: str) -> list[str]:
    """Return the words of a name, in the singular."""
    return [re.sub(r"(?<!s)s$", "", word.lower()) for word in _WORDS.findall(name)]


def _hide_assigned(match: re.Match[str]) -> str:
    value = match["value"]
    if not is_secret(match["name"]) or _PUBLIC.fullmatch(value) or value.isdecimal():
        return match[0]
    return f"{match['name']}{match['sign']}{HIDDEN}"
