# SPDX-License-Identifier: Apache-2.0

"""
Build the embedded tiny chat model from scratch: a Llama of 0.8 million parameters with its own byte-level BPE
tokenizer and chat template, trained on *other* instances of the embedded tasks in all roles and action formats.

Like a pretrained LLM it can then answer in every role, copy, and follow advice, and it has a mediocre policy. It knows
nothing about the instances of training runs: half of the data are instances with fixed rules and names that no run
uses, the other half have new random rules in every sample.

python -m benchmarks.tiny_models.build --output_dir trl_nlac/tiny_model --max_steps 10000

The base model of the benchmarks knows the variants of the service desk, and only plain text:

python -m benchmarks.tiny_models.build --output_dir benchmarks/learning/base_model --max_steps 8000 \\
    --families told hinted delayed --action_formats text

The model of the quickstart knows the support desk alone. Whole phrases of the desk are tokens of its tokenizer:

python -m benchmarks.tiny_models.build --output_dir trl_nlac/support_model --max_steps 4000 \\
    --families support_desk --action_formats text

So are those of Guess The Number in the model of the benchmark's game, which has read games of guesses at random:

python -m benchmarks.tiny_models.build --output_dir benchmarks/learning/base_model_guess_the_number \\
    --max_steps 4000 --families guess_the_number --action_formats text

The model is saved every 1,000 steps. A build that was interrupted goes on from there with `--first_step`, a new
optimizer and new samples.

With `--several_futures` the model also learns the roles that weigh several futures (`num_futures` above 1).
"""

import argparse
import json
import random
import sys
import time
from dataclasses import replace
from itertools import chain
from pathlib import Path
from statistics import mean

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional as F
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.tiny_models import guess_the_number_dialogues
from benchmarks.tiny_models.dialogues import RoleDialogue
from benchmarks.tiny_models.samples import FAMILIES as WORLDS
from benchmarks.tiny_models.samples import GUESS_THE_NUMBER_PROMPTS
from benchmarks.tiny_models.service_desk_dialogues import ServiceDeskFamily
from benchmarks.tiny_models.support_desk_dialogues import ADVICE
from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.chat.tool_calls import format_tool_call
from trl_nlac.environments.embedded import COMPACT_PROMPTS, SUPPORT_PROMPTS, TINY_MODEL, support_desk
from trl_nlac.environments.embedded.names import ALL_NAMES, NAMES_OF_VARIANTS
from trl_nlac.environments.embedded.rooms import DOORS
from trl_nlac.environments.embedded.service_desk import ARGUMENTS, VALUES
from trl_nlac.options.role_options import RoleOptions
from trl_nlac.prompts import NLACPrompts


ROLE_MIX = ["policy", "critique", "critique", "successor", "backup", "backup", "refine", "refine"]
MIX_OF_SEVERAL_FUTURES = ["future", "backup_future", *["evaluation"] * 5]  # weighing is harder than copying
FORMAT_MIX = ["text", "text", "react", "tool_call"]
FAMILIES = {
    **{name: family() for name, family in WORLDS.items()},
    **{variant: ServiceDeskFamily(variant, customers=True) for variant in ("told", "hinted", "delayed")},
}
SPECIAL_TOKENS = ["<|endoftext|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]
SPECIAL_TOKENS += ["<tool_call>", "</tool_call>"]


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build a byte-level BPE in which every word of the tasks and roles is one token; other text is bytes."""
    words = ["take", "trap", "treasure", "late", "win", "lose", "route", "refused", "needs", "unreadable", "closed"]
    words += ["Future:", "Optimality:", "Yes", "No", "use", "avoid", "Critique?", "Scenario?", "Summary?", "Revise?"]
    words += ["Score", "Thought:", "Action:", "Think.", *DOORS, *chain(*VALUES)]
    words += [*ALL_NAMES, *NAMES_OF_VARIANTS, *ARGUMENTS, "accepted", *map(str, range(10))]
    calls = [format_tool_call("take", {"door": door}) for door in DOORS]
    calls += [format_tool_call("route", dict(zip(ARGUMENTS, call, strict=True))) for call in zip(*VALUES, strict=True)]
    signatures = ["take(door)", f"route({', '.join(ARGUMENTS)})"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4096,
        min_frequency=1,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*words, *calls, *signatures, "\nOptimality:", "\nAction:"], trainer)
    return _with_template(tokenizer)


def build_support_tokenizer() -> PreTrainedTokenizerFast:
    """Build a tokenizer with one token for every value and phrase of the support desk, and bytes for other text."""
    begin, *rest = [f'{name}="' for name in support_desk.ARGUMENTS]
    phrases = {f"route({begin}", *[f'", {name}' for name in rest], '")'}
    phrases |= {value for values in support_desk.VALUES for value in values} | set(support_desk.ITEMS)
    for sentence in (*support_desk.REFUSALS, *[f"{advice}." for advice in ADVICE]):
        before, after = sentence.split("{}")
        phrases |= {before, before[0].upper() + before[1:], after, after.removesuffix(".")}
    phrases |= {"My ", ".", " ", ". ", " and ", "Future: ", "\nOptimality: ", "Yes", "No"}
    phrases |= {f" {sentence}" for sentence in (*support_desk.CALLS_LEFT.values(), support_desk.LOST)}
    phrases |= {f" {problem}." for problem in support_desk.PROBLEMS} | {support_desk.CLOSED, support_desk.UNREADABLE}
    questions = [SUPPORT_PROMPTS.critique, SUPPORT_PROMPTS.backup, SUPPORT_PROMPTS.refine, SUPPORT_PROMPTS.future]
    phrases |= {*questions, *[f" {question}" for question in questions], " The score is "}
    return _phrase_tokenizer(phrases)


def build_guess_the_number_tokenizer() -> PreTrainedTokenizerFast:
    """
    Build a tokenizer with one token for every number, guess and phrase of the game, and bytes for other text. Phrases
    include the space before them, so that a hint comes right after its guess.
    """
    prompts, game = GUESS_THE_NUMBER_PROMPTS, guess_the_number_dialogues
    reached, target, _ = game.TURN_LIMIT.split("{}")
    said = {game.LOWER, game.HIGHER, game.FOUND, game.REFUSED, game.REFUSED_AGAIN}
    said |= set(map(game.format_guess, game.NUMBERS))
    phrases = {*said, *[f" {text}" for text in said], *map(str, game.NUMBERS), f"\n\n{reached}", target}
    phrases |= {*game.FIRST_OBSERVATION.splitlines(keepends=True), game.ADVICE.split(" {}")[0], ".", ". "}
    phrases |= {f"{game.closeness(guess, game.NUMBERS[0]):g}" for guess in game.NUMBERS}
    phrases |= {"Future:", "\nOptimality: ", "Yes", "No"}
    questions = [prompts.critique, prompts.backup, prompts.refine, prompts.future, "The score is "]
    return _phrase_tokenizer(phrases | {*questions, *[f" {question}" for question in questions]})


def _phrase_tokenizer(phrases: set[str]) -> PreTrainedTokenizerFast:
    """Build a tokenizer in which each of `phrases` is one token, and other text is bytes."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    written = sorted("".join(piece for piece, _ in byte_level.pre_tokenize_str(phrase)) for phrase in phrases - {""})
    letters = [letter for letter in sorted(pre_tokenizers.ByteLevel.alphabet()) if letter not in written]
    # The segmentation with the best sum is the one with the longest pieces.
    pieces = [
        *[(token, 0.0) for token in SPECIAL_TOKENS],
        *[(p, -1.0) for p in written],
        *[(x, -10.0) for x in letters],
    ]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.pre_tokenizer = byte_level
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    return _with_template(tokenizer)


def _with_template(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """Give a tokenizer the special tokens and the templates that every embedded model has."""
    of_embedded = AutoTokenizer.from_pretrained(TINY_MODEL)
    built = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=SPECIAL_TOKENS[2:],
        chat_template=of_embedded.chat_template,
        padding_side="left",
        model_max_length=512,
    )
    built.response_template = of_embedded.response_template
    return built


def build_model(tokenizer: PreTrainedTokenizerFast, hidden_size: int, num_layers: int, seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=3 * hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=hidden_size // 32,  # head dimension 32, the smallest that vLLM's CPU backend supports
        num_key_value_heads=hidden_size // 32,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def encode(
    chat: ChatEncoder,
    prompts: NLACPrompts,
    dialogue: RoleDialogue,
    role: str,
    action_format: str,
    states_action: bool = False,
) -> tuple[list[int], list[int]]:
    messages, completion = dialogue.messages(role, prompts, action_format, states_action)
    return chat.start(messages, [dialogue.tool] if action_format == "tool_call" else None), chat.completion(completion)


def collate(samples: list[tuple[list[int], list[int]]], pad_token_id: int, prompt_weight: float):
    length = max(len(prompt) + len(completion) for prompt, completion in samples)
    input_ids = torch.full((len(samples), length), pad_token_id)
    weights = torch.zeros(len(samples), length)
    for i, (prompt, completion) in enumerate(samples):
        end = len(prompt) + len(completion)
        input_ids[i, :end] = torch.tensor(prompt + completion)
        weights[i, 1 : len(prompt)] = prompt_weight
        weights[i, len(prompt) : end] = 1
    return input_ids, weights


@torch.no_grad()
def score(
    model,
    chat: ChatEncoder,
    prompts: NLACPrompts,
    family,
    action_format: str,
    number: int,
    several_futures: bool = False,
) -> dict[str, float]:
    """
    Measure the greedy skill of the roles: the shares of Bellman targets that are exactly right, of refined actions
    that follow the critique, and of critiques of known instances that begin with the right observation.
    """
    rng = random.Random("score")

    def answers(role: str, known: bool = False) -> list[tuple[RoleDialogue, str, str]]:
        dialogues = [family.dialogue(rng, role, known) for _ in range(number)]
        samples = [encode(chat, prompts, dialogue, role, action_format) for dialogue in dialogues]
        inputs = chat.tokenizer.pad({"input_ids": [prompt for prompt, _ in samples]}, return_tensors="pt")
        output = model.generate(**inputs, max_new_tokens=64, do_sample=False)[:, inputs["input_ids"].shape[1] :]
        right = [chat.decode(completion) for _, completion in samples]
        return list(zip(dialogues, map(chat.decode, output.tolist()), right, strict=True))

    exact = {"backup_exact": "backup"}
    if several_futures:
        exact |= {"backup_future_exact": "backup_future", "weighs_futures": "evaluation"}
    result = {name: mean(text == right for _, text, right in answers(role)) for name, role in exact.items()}
    obeyed = []
    for dialogue, text, right in answers("refine"):
        kept = encode(chat, prompts, replace(dialogue, refined_action=dialogue.action), "refine", action_format)[1]
        obeyed.append(text != chat.decode(kept) if dialogue.advice.startswith("avoid ") else text == right)
    result["refine_obeys"] = mean(obeyed)
    if family.known is not None:
        begins = [text.startswith(f"Future: {of.future[0][1]}") for of, text, _ in answers("critique", known=True)]
        result["known_next_observation"] = mean(begins)
    return {name: round(value, 3) for name, value in result.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", default="tiny_model")
    parser.add_argument("--max_steps", type=int, default=10000)
    parser.add_argument("--first_step", type=int, default=0, help="go on from the weights in `output_dir`")
    parser.add_argument("--families", nargs="+", choices=list(FAMILIES), default=["rooms", "service_desk"])
    drawn = "one is drawn per sample; repeat one to draw it more often"
    parser.add_argument("--action_formats", nargs="+", default=FORMAT_MIX, help=drawn)
    parser.add_argument("--roles", nargs="+", choices=sorted(set(ROLE_MIX)), default=ROLE_MIX, help=drawn)
    parser.add_argument("--several_futures", action="store_true", help="add the roles for `num_futures` above 1")
    parser.add_argument("--hidden_size", type=int, default=128)
    parser.add_argument("--num_layers", type=int, default=3)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--learning_rate", type=float, default=2e-3)
    parser.add_argument("--prompt_weight", type=float, default=0.1, help="weight of the loss on prompt tokens")
    parser.add_argument("--num_scored", type=int, default=128, help="number of samples per role in a score")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    of_their_own = {
        "support_desk": (SUPPORT_PROMPTS, build_support_tokenizer),
        "guess_the_number": (GUESS_THE_NUMBER_PROMPTS, build_guess_the_number_tokenizer),
    }
    alone = set(args.families) & set(of_their_own)
    if alone and not (len(args.families) == 1 and set(args.action_formats) == {"text"}):
        parser.error(f"{min(alone)} has a model of its own, in the action format `text`")
    prompts, build = of_their_own.get(args.families[0], (COMPACT_PROMPTS, build_tokenizer))
    tokenizer = build()
    if args.first_step:
        model = LlamaForCausalLM.from_pretrained(args.output_dir)
    else:
        model = build_model(tokenizer, args.hidden_size, args.num_layers, args.seed)
    chat = ChatEncoder(tokenizer)
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{len(tokenizer)} tokens, {num_parameters:,} parameters")
    families = {name: FAMILIES[name] for name in args.families}
    role_mix = args.roles + (MIX_OF_SEVERAL_FUTURES if args.several_futures else [])
    rng = random.Random(args.seed + args.first_step)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, weight_decay=0.01, betas=(0.9, 0.98))
    start, batches = time.perf_counter(), []
    for step in range(args.first_step, args.max_steps):
        progress = step / args.max_steps
        rate = args.learning_rate * min(1, (step - args.first_step + 1) / 100) * min(1, (1 - progress) / 0.7)
        for group in optimizer.param_groups:
            group["lr"] = rate
        if not batches:  # batches of similar lengths, in random order
            roles = [rng.choice(role_mix) for _ in range(8 * args.batch_size)]
            samples = [
                encode(
                    chat,
                    prompts,
                    # Half of the dialogues come from known instances.
                    rng.choice(list(families.values())).dialogue(rng, role, rng.random() < 0.5),
                    role,
                    rng.choice(args.action_formats),
                    states_action=rng.random() < 0.5,
                )
                for role in roles
            ]
            samples.sort(key=lambda sample: len(sample[0]) + len(sample[1]))
            batches = [samples[i : i + args.batch_size] for i in range(0, len(samples), args.batch_size)]
            rng.shuffle(batches)
        input_ids, weights = collate(batches.pop(), tokenizer.pad_token_id, args.prompt_weight)
        logits = model(input_ids=input_ids[:, :-1], use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1), input_ids[:, 1:].flatten(), reduction="none")
        loss = (loss * weights[:, 1:].flatten()).sum() / weights[:, 1:].sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 200 == 0:
            print(f"step {step} loss {loss.item():.3f} {time.perf_counter() - start:.0f} s", flush=True)
        if (step + 1) % 1000 == 0 or step + 1 == args.max_steps:
            output_dir = Path(args.output_dir)
            model.save_pretrained(output_dir)
            tokenizer.save_pretrained(output_dir)
            prompts.save(output_dir / "nlac_prompts.json")
            RoleOptions(max_prompt_length=448, max_completion_length=64).save_pretrained(output_dir)  # its context
            scores = {
                f"{name} {action_format}": score(
                    model, chat, prompts, family, action_format, args.num_scored, args.several_futures
                )
                for name, family in families.items()
                for action_format in dict.fromkeys(args.action_formats)
            }
            print(json.dumps({"step": step + 1, "seconds": round(time.perf_counter() - start), **scores}), flush=True)
    made = {
        "command": " ".join(["python -m benchmarks.tiny_models.build", *sys.argv[1:]]),
        "parameters": num_parameters,
        "samples": args.max_steps * args.batch_size,
        "first_step": args.first_step,
        "seconds": round(time.perf_counter() - start),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "scores": scores,
    }
    (Path(args.output_dir) / "build.json").write_text(json.dumps(made, indent=2) + "\n")


if __name__ == "__main__":
    main()
