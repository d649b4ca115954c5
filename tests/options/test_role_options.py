# SPDX-License-Identifier: Apache-2.0

import pytest

from trl_nlac.method.roles import role_samplings
from trl_nlac.options.role_options import ROLES, RoleOptions


class TestRoleSampling:
    def test_each_role_has_its_own_settings_and_the_general_ones(self):
        role_sampling = {"backup": {"temperature": 0.0, "max_tokens": 9}, "critic": {"top_p": 0.5, "top_k": 3}}
        samplings = role_samplings(RoleOptions(temperature=0.9, max_completion_length=99, role_sampling=role_sampling))
        assert samplings.keys() == set(ROLES)
        assert (samplings["backup"].temperature, samplings["backup"].max_tokens) == (0, 9)
        assert (samplings["critic"].top_p, samplings["critic"].top_k) == (0.5, 3)
        others = [samplings[role] for role in ROLES if role not in (*role_sampling, "refine")]
        assert all(sampling == samplings["policy"] for sampling in others)
        assert (samplings["policy"].temperature, samplings["policy"].max_tokens) == (0.9, 99)

    @pytest.mark.parametrize("role", ["backup", "critic"])
    def test_what_is_greedy_unless_it_is_asked_to_sample(self, role):
        assert role_samplings(RoleOptions(temperature=0.9))[role].temperature == 0
        sampled = role_samplings(RoleOptions(role_sampling={role: {"temperature": 1.0}}))
        assert sampled[role] == sampled["policy"]

    def test_refinement_keeps_to_the_advice_and_leaves_out_nothing_unless_it_is_asked_to(self):
        refine = role_samplings(RoleOptions(min_p=0.2, temperature=0.9))["refine"]
        assert (refine.min_p, refine.temperature) == (None, 0.5)

    def test_evaluation_starts_from_the_policy(self):
        role_sampling = {"policy": {"max_tokens": 7, "temperature": 0.5}, "evaluation": {"temperature": 0.0}}
        samplings = role_samplings(RoleOptions(role_sampling=role_sampling))
        assert (samplings["evaluation"].max_tokens, samplings["evaluation"].temperature) == (7, 0)
        assert samplings["policy"].temperature == 0.5

    @pytest.mark.parametrize("role", ["successor", "backup", "critic"])
    @pytest.mark.parametrize(("settings", "expected"), [({}, 0.05), ({"min_p": 0.0}, None), ({"min_p": 0.2}, 0.2)])
    def test_a_role_can_sample_tokens_that_the_policy_leaves_out(self, role, settings, expected):
        samplings = role_samplings(RoleOptions(min_p=0.05, role_sampling={role: settings}))
        assert samplings[role].min_p == expected
        assert {sampling.min_p for other, sampling in samplings.items() if other not in (role, "refine")} == {0.05}

    def test_regex_is_for_actions(self):
        samplings = role_samplings(RoleOptions(), action_regex="go .*")
        assert {role for role in ROLES if samplings[role].regex} == {"policy", "refine", "evaluation"}

    @pytest.mark.parametrize(
        ("role_sampling", "message"),
        [
            ({"critique": {}}, "`role_sampling` names the role 'critique'. Roles are: policy, successor, backup,"),
            (
                {"backup": {"max_length": 3}},
                r"`role_sampling\['backup'\]` has the setting 'max_length'. Settings are: max_",
            ),
            ({"backup": 0.5}, r"`role_sampling\['backup'\]` must be a dict of settings, got 0.5"),
            ("backup", "`role_sampling` must be a dict, or JSON of one, or None, got 'backup'"),
            (
                {"backup": {"temperature": -1}},
                r"`role_sampling\['backup'\]\['temperature'\]` must be 0, or between 0.001 and 1,000, got -1",
            ),
            ({"refine": {"top_p": 2.0}}, r"\['refine'\]\['top_p'\]` must be above 0 and at most 1, got 2.0"),
            ({"refine": {"min_p": -0.1}}, r"\['min_p'\]` must be between 0 and 1, got -0.1"),
            ({"policy": {"max_tokens": 0}}, r"\['max_tokens'\]` must be between 1 and 1,000,000, got 0"),
            ({"policy": {"temperature": 1e-40}}, r"'temperature'\]` must be 0, or between 0.001 and 1,000, got 1e-40"),
            ({"policy": {"min_p": float("nan")}}, r"\['min_p'\]` must be between 0 and 1, got nan"),
            ({"policy": {"top_k": True}}, r"\['top_k'\]` must be not negative, got True"),
        ],
    )
    def test_errors_name_role_setting_and_value(self, role_sampling, message):
        with pytest.raises(ValueError, match=message):
            RoleOptions(role_sampling=role_sampling)


class TestGenerationKwargs:
    @pytest.mark.parametrize(
        ("kwargs", "message"),
        [
            ({"seed": 0}, r"'seed' \(use `seed`, from which each answer has its own\), got {'seed': 0}"),
            ({"max_tokens": 4000}, r"'max_tokens' \(use `max_completion_length` or `role_sampling`\), got "),
            ({"max_new_tokens": 4000}, r"'max_new_tokens' \(use `max_completion_length`"),
            ({"logprobs": 1}, r"'logprobs' \(leave it out: "),
            (
                '{"temperature": 0.7, "no_repeat_ngram_size": 3, "top_k": 5}',
                r"'temperature' \(use `temperature` or `role_sampling`\), 'top_k' \(use `top_k` or .*\), got ",
            ),
        ],
    )
    def test_what_is_set_elsewhere_is_refused(self, kwargs, message):
        with pytest.raises(ValueError, match=f"`generation_kwargs` cannot set {message}"):
            RoleOptions(generation_kwargs=kwargs)

    def test_what_has_no_option_is_passed_on(self):
        kwargs = {"no_repeat_ngram_size": 3, "typical_p": 0.9, "min_new_tokens": 2, "presence_penalty": 0.5}
        assert role_samplings(RoleOptions(generation_kwargs=kwargs))["backup"].generation_kwargs == kwargs


class TestFiles:
    def test_round_trip(self, tmp_path):
        options = RoleOptions(action_format="text", max_turns=3, role_sampling={"backup": {"temperature": 0.0}})
        options.save_pretrained(tmp_path)
        assert RoleOptions.from_pretrained(str(tmp_path)) == options
        assert RoleOptions.from_pretrained(str(tmp_path), max_turns=4).max_turns == 4

    def test_defaults_without_a_file(self, tmp_path):
        assert RoleOptions.from_pretrained(str(tmp_path)) == RoleOptions()

    def test_unknown_options_are_refused(self, tmp_path):
        with pytest.raises(
            ValueError, match="`learning_rate` is not an option of the roles. Options are: action_format"
        ):
            RoleOptions.from_pretrained(str(tmp_path), learning_rate=1.0)
        (tmp_path / "nlac_roles.json").write_text('{"trust_remote_code": true}')
        with pytest.raises(ValueError, match="`trust_remote_code` of .*nlac_roles.json is not an option of the roles"):
            RoleOptions.from_pretrained(str(tmp_path))
