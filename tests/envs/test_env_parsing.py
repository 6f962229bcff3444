"""The strict parser and the response layouts."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from vagen.envs.parsing import LAYOUTS, ParsedResponse, ResponseParser, Tags, named, write_response

ACTIONS = ("Left", "Down", "Right", "Up")
GOOD = (
    "<think><observation>o</observation><reasoning>r</reasoning>"
    "<prediction>p</prediction></think><answer>Left, Up</answer>"
)


def parser(prompt_format: str = "grounding_worldmodeling", **options: Any) -> ResponseParser:
    arguments = {"read_action": named(ACTIONS), "separator": ",", "max_actions": 3, "tags": Tags()}
    return ResponseParser(layout=LAYOUTS[prompt_format], **(arguments | options))


def test_sections_and_actions_are_read():
    parsed = parser().parse(GOOD)
    assert parsed == ParsedResponse(True, ("Left", "Up"), "o", "r", "p", "Left, Up")
    assert json.loads(json.dumps(parsed.to_dict())) == parsed.to_dict()
    assert set(parsed.to_dict()) == {
        "format_correct",
        "actions",
        "observation",
        "reasoning",
        "prediction",
        "answer",
    }


@pytest.mark.parametrize("markup", [False, True])
def test_a_memory_section_is_keep_or_drop_and_nothing_else(markup):
    layout = replace(LAYOUTS["free_think"], memory=True)
    options = {"separator": ",", "max_actions": 3, "tags": Tags(memory="m"), "read_action": str}
    reader = ResponseParser(layout=layout, markup_answer=markup, **options)
    said = "<think>t</think><answer>Up</answer>"
    for memory in ("keep", "drop"):
        parsed = reader.parse(f"{said}<m> {memory}\n</m>")
        assert parsed == ParsedResponse(True, ("Up",), reasoning="t", answer="Up", memory=memory)
        assert ParsedResponse.from_dict(json.loads(json.dumps(parsed.to_dict()))) == parsed
    texts = {"think": "t", "answer": "Up", "memory": "drop"}
    assert write_response(layout, Tags(memory="m"), texts) == f"{said}<m>drop</m>"
    for wrong in ("", "<m>maybe</m>", "<m></m>", "<m>Keep</m>", "<m>keep</m><m>drop</m>"):
        assert reader.parse(said + wrong) == ParsedResponse(False)
    assert parser("free_think").parse(f"{said}<memory>keep</memory>") == ParsedResponse(False)


@pytest.mark.parametrize(
    ("prompt_format", "response", "texts"),
    [
        ("no_think", "<answer>Up</answer>", (None, None, None)),
        ("free_think", "<think>why 1 < 2</think><answer>Up</answer>", (None, "why 1 < 2", None)),
        (
            "grounding_symbolic",
            "<think><observation>P _\nO G</observation><reasoning>r</reasoning></think>"
            "<answer>Up</answer>",
            ("P _\nO G", "r", None),
        ),
        (
            "worldmodeling_structured",
            '<think><reasoning>r</reasoning><prediction>{"player": [0, 1]}</prediction></think>'
            "<answer>Up</answer>",
            (None, "r", '{"player": [0, 1]}'),
        ),
    ],
)
def test_each_strategy_has_its_own_layout(prompt_format, response, texts):
    parsed = parser(prompt_format).parse(response)
    assert parsed.format_correct and parsed.actions == ("Up",)
    assert (parsed.observation, parsed.reasoning, parsed.prediction) == texts
    for other, layout in LAYOUTS.items():
        if layout.sections != LAYOUTS[prompt_format].sections:
            assert not parser(other).parse(response).format_correct


def test_whitespace_around_tags_is_allowed():
    spaced = GOOD.replace("<", " \n <").replace(">", "> \t") + "\n"
    assert parser().parse(spaced) == ParsedResponse(True, ("Left", "Up"), "o", "r", "p", "Left, Up")


@pytest.mark.parametrize(
    "broken",
    [
        "",
        "Left",
        "x" + GOOD,
        GOOD + " thanks",
        GOOD + GOOD,
        GOOD + "<answer>Up</answer>",
        GOOD.replace("</think><answer>", "</think> so <answer>"),
        GOOD.replace("<think>", "<think>first "),
        GOOD.replace("</prediction></think>", "</prediction> then </think>"),
        GOOD.replace("<think>", "").replace("</think>", ""),
        GOOD.replace("</answer>", ""),
        GOOD.replace("<observation>o</observation>", ""),
        GOOD.replace("<observation>o</observation>", "<observation> </observation>"),
        GOOD.replace(">o<", "><reasoning>o</reasoning><"),
        GOOD.replace(">o<", "><b>o</b><"),
        GOOD.replace(">o<", "><image><"),
        GOOD.replace("Left", "<answer>Left"),
        GOOD.replace("<answer>", "<Answer>"),
        GOOD.replace("<answer>", "<answer >"),
        GOOD.replace(">o<", '>o <answer x="1">Up</answer x="1"> <'),
        GOOD.replace(">o<", '><b class="c">o<'),
        GOOD.replace(">o<", ">o < answer>Up</ answer> <"),
        GOOD.replace(">o<", ">o <ANSWER please>Up <"),
        GOOD.replace("observation", "prediction"),
        GOOD.replace("<answer>Left, Up</answer>", "<answer></answer>"),
    ],
)
def test_a_wrong_layout_executes_nothing(broken):
    assert parser().parse(broken) == ParsedResponse(False)


def test_a_comparison_is_no_tag():
    assert parser().parse(GOOD.replace(">o<", ">row<a and b>c, 1 < 2 = 3 > x<")).format_correct


@pytest.mark.parametrize(
    ("answer", "actions"), [("left, UP ,dOwN", ("Left", "Up", "Down")), ("Left", ("Left",))]
)
def test_action_names_are_canonical_whatever_their_case(answer, actions):
    parsed = parser("no_think").parse(f"<answer>{answer}</answer>")
    assert parsed.format_correct and parsed.actions == actions


@pytest.mark.parametrize(
    ("answer", "actions"),
    [
        ("Left, Jump, Up", ("Left",)),
        ("Jump", ()),
        ("Left, Up, Down, Right", ("Left", "Up", "Down")),
        ("Left Up", ()),
        ("Left,", ("Left",)),
        (",Left", ()),
        ("Left|Up", ()),
        ("Leftt", ()),
    ],
)
def test_an_invalid_action_stops_the_list_and_costs_the_format(answer, actions):
    parsed = parser("no_think").parse(f"<answer>{answer}</answer>")
    assert not parsed.format_correct and parsed.actions == actions
    assert parsed.answer == answer.strip()


def test_tags_and_separator_can_be_renamed():
    tags = Tags(think="plan", answer="act")
    renamed = parser("free_think", tags=tags, separator="|")
    assert renamed.parse("<plan>x</plan><act>Up|Down</act>").actions == ("Up", "Down")
    assert not renamed.parse("<think>x</think><answer>Up|Down</answer>").format_correct


@pytest.mark.parametrize("names", [{"think": "answer"}, {"think": "<think>"}, {"answer": ""}])
def test_unusable_tag_names_are_refused(names):
    with pytest.raises(ValidationError):
        Tags(**names)


TEXT = st.text(st.characters(exclude_characters="<>")).map(str.strip).filter(bool)


@given(st.sampled_from(sorted(LAYOUTS)), st.data())
def test_written_responses_parse_back(prompt_format, data):
    layout = LAYOUTS[prompt_format]
    texts = {section: data.draw(TEXT) for section in layout.sections}
    actions = data.draw(st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=3))
    texts["answer"] = ",".join(actions)
    parsed = parser(prompt_format).parse(write_response(layout, Tags(), texts))
    assert parsed.format_correct and list(parsed.actions) == actions
    assert parsed.observation == texts.get("observation")
    assert parsed.prediction == texts.get("prediction")
    assert parsed.reasoning == texts.get("reasoning", texts.get("think"))


PIECES = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        [f"<{slash}{tag}>" for tag in Tags().model_dump().values() for slash in ("", "/")]
        + ["Left", ",", "<", ">", "</", "\x00", "\ud800", "<image>", "<|im_end|>", " \n"]
    ),
)


@given(st.sampled_from(sorted(LAYOUTS)), st.lists(PIECES, max_size=24).map("".join))
def test_no_text_makes_the_parser_raise(prompt_format, response):
    parsed = parser(prompt_format).parse(response)
    assert len(parsed.actions) <= 3 and set(parsed.actions) <= set(ACTIONS)
    if parsed.answer is None:
        assert parsed == ParsedResponse(False)
    if parsed.format_correct:
        assert parsed.actions


@given(st.sampled_from(sorted(LAYOUTS)), st.data())
def test_inserting_anything_but_whitespace_between_tags_breaks_the_layout(prompt_format, data):
    layout = LAYOUTS[prompt_format]
    texts = dict.fromkeys(layout.sections, "x") | {"answer": "Up"}
    response = write_response(layout, Tags(), texts)
    junk = data.draw(TEXT)
    gaps = [0, len(response)] + [
        i + 1 for i in range(len(response) - 1) if response[i : i + 2] == "><"
    ]
    gap = data.draw(st.sampled_from(gaps))
    assert not parser(prompt_format).parse(response[:gap] + junk + response[gap:]).format_correct


def test_parsing_time_grows_linearly():
    # A backtracking pattern would need hours for this.
    hostile = "<think>" * 2000 + "<" * 50_000 + "<a " * 20_000 + " " * 50_000
    assert parser().parse(hostile) == ParsedResponse(False)


SVG = '<svg xmlns="http://www.w3.org/2000/svg"><rect width="4" height="4"/></svg>'


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (f"<think>a square</think><answer>{SVG}</answer>", SVG),
        (f"<think>a square</think> <answer>\n{SVG}\n</answer> ", SVG),
        (f"<think>a square</think><answer>{SVG}</answer><answer>{SVG}</answer>", None),
        (f"<think>a square</think><answer>{SVG}<answer>x</answer>", None),
        (f"<think>a <b>square</b></think><answer>{SVG}</answer>", None),
        (f"<think>a square</think><answer>{SVG}", None),
        (f"<answer>{SVG}</answer>", None),
        (f"{SVG}<think>a square</think><answer>{SVG}</answer>", None),
        ("<think>a square</think><answer> </answer>", None),
    ],
)
def test_a_markup_answer_is_taken_as_it_is(response, answer):
    reader = parser("free_think", read_action=lambda text: text, separator="~~", max_actions=1)
    assert not reader.parse(response).format_correct
    markup = parser(
        "free_think",
        read_action=lambda text: text,
        separator="~~",
        max_actions=1,
        markup_answer=True,
    ).parse(response)
    assert markup.answer == answer and markup.format_correct == (answer is not None)
    assert markup.actions == (() if answer is None else (answer,))
