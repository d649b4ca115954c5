# SPDX-License-Identifier: Apache-2.0

import pytest
from helpers.testing_utils import make_trainer
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast

from trl_nlac.chat.tokenizer import ending_token_ids
from trl_nlac.environments.embedded import TINY_MODEL


def test_tokenizer_without_padding(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
    bare = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, chat_template=tokenizer.chat_template)
    with pytest.raises(ValueError, match="`processing_class`.*neither a `pad_token` nor an `eos_token`"):
        make_trainer(tmp_path, processing_class=bare)


def test_missing_padding_token_is_the_end_token(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
    tokenizer.pad_token = None
    trainer = make_trainer(tmp_path, processing_class=tokenizer)
    assert trainer.model.config.pad_token_id == tokenizer.eos_token_id
    assert trainer.model.generation_config.pad_token_id == tokenizer.eos_token_id
    trainer.train()


def test_everything_that_ends_an_answer():
    tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
    end = tokenizer.eos_token_id
    assert ending_token_ids(tokenizer, [1001], GenerationConfig(eos_token_id=[1002, end])) == [1001, end, 1002]
    assert ending_token_ids(tokenizer, [end], GenerationConfig(eos_token_id=1003)) == [end, 1003]
    for config in (GenerationConfig(), None):
        assert ending_token_ids(tokenizer, [1001], config) == [1001, end]
