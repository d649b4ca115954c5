# SPDX-License-Identifier: Apache-2.0

import pytest

from trl_nlac.secrets import HIDDEN, hide_in_text, hide_secrets, is_secret


@pytest.mark.parametrize(
    "name",
    ["hub_token", "token", "api_key", "apiKey", "OPENAI_API_KEY", "X-Api-Key", "aws_secret_access_key", "auth"]
    + ["password", "db_password_file", "client_secret", "credentials", "Authorization", "accessToken", "api_keys"]
    + ["pass", "db_pass", "dbPass", "PGPASS", "PGPASSWORD", "openaiApikey", "key", "stripe_key", "secret_answer_key"],
)
def test_secret_names(name):
    assert is_secret(name) and hide_secrets({name: "abc"}) == {name: HIDDEN}
    assert hide_secrets({"outer": [{name: ["a", "b"]}, {name: {"user": "me"}}, {name: ("x",)}]}) == {
        "outer": [{name: [HIDDEN, HIDDEN]}, {name: {"user": HIDDEN}}, {name: (HIDDEN,)}]
    }


@pytest.mark.parametrize(
    "name",
    ["tokenizer", "token_ids", "eos_token_id", "monkey", "key_path", "author", "", "7", "compass", "passed", "access"]
    + ["answer_key", "sort_key", "sortKeys", "primary_key", "public_key", "passage"],
)
def test_other_names(name):
    assert not is_secret(name) and hide_secrets({name: "abc"}) == {name: "abc"}


def test_what_is_not_secret_stays():
    options = dict(max_tokens=256, token=None, hub_token=True, eos_token="</s>", pad_token="[PAD]", key="")
    assert hide_secrets(options) == options and hide_secrets({"role_sampling": {"backup": options}})
    for name in ("password", "PGPASSWORD", "pass"):
        assert hide_secrets({name: 1234}) == {name: HIDDEN}
    tokens = ["<|endoftext|>", "<｜end▁of▁sentence｜>", "[/INST]", "[gMASK]", "<unused0>", HIDDEN]
    assert hide_secrets({"token": tokens}) == {"token": tokens}
    for secret in ('["abcdef123456", "ghijkl"]', "<Winter 2024!>", "[winter]"):
        assert hide_secrets({"api_keys": secret}) == {"api_keys": HIDDEN}
    values = [object, 1.5, b"x", None]
    assert hide_secrets(values) == values and hide_secrets(values) is not values


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("at http://me:p@ss@host:80/v1", "at http://<hidden>@host:80/v1"),
        ("https://abc@github.com/a/b", "https://<hidden>@github.com/a/b"),
        ("http://host/a?x=1&api_key=abc&y=2", "http://host/a?x=1&api_key=<hidden>&y=2"),
        ("got {'api_key': 'my own', 'n': 3}", "got {'api_key': '<hidden>', 'n': 3}"),
        ('Env(token="x y", limit=3)', 'Env(token="<hidden>", limit=3)'),
        ("Server=a;Password=abc;", "Server=a;Password=<hidden>;"),
        ("Authorization: Bearer abcdefghijk", "Authorization: Bearer <hidden>"),
        ("Authorization: Basic dXNlcjpwYXNzd29yZA==", "Authorization: Basic <hidden>"),
        ("wrong key sk-abcdefghijklmnop1234.", "wrong key <hidden>."),
        ("hf_abcdefghijklmnop is no token", "<hidden> is no token"),
        ("ghp_abcdefghijklmnop1234 xoxb-1234567890-abc AKIAABCDEFGHIJKLMNOP", "<hidden> <hidden> <hidden>"),
    ],
)
def test_secrets_in_texts(text, expected):
    assert hide_in_text(text) == expected == hide_in_text(expected)


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens=512, tokens: 3, `hub_token` is missing",
        "eos_token='</s>', pad_token=\"[PAD]\"",
        "hf_hub_download failed: http://host/path?email=a@b.c",
        "use a key: red, or the task-oriented-abcdefghijklmnop",
        "http://localhost:8000/v1",
        "a basic understanding of physics, and Basic mathematics",
    ],
)
def test_texts_without_secrets_stay(text):
    assert hide_in_text(text) == text
