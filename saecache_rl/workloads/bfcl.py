"""BFCL's multi-turn tasks: questions turn by turn, the classes whose functions are at hand, and the calls expected.

A turn is a request. Its reply is the expected calls, where `possible_answer` is there; what the functions return is not
in the data, so it is not in the next prompt. Functions that come only later (`missed_function`) are told by the user
then, as the benchmark does. No times.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

from saecache_rl.workloads.conversations import load_dialogues
from saecache_rl.workloads.messages import Dialogue, Message, compact, messages_of, tools_of
from saecache_rl.workloads.records import BadRecordError, Malformed, find, pick
from saecache_rl.workloads.sources import JSON_SUFFIXES, Record, Source, Text, is_archive, open_sources, records_of
from saecache_rl.workloads.trace import Trace

TEXT = Text(
    '{"id", "question": [[{"role", "content"}] a turn], "involved_classes"} a line',
    "get berkeley-function-call-leaderboard/bfcl_eval/data of github.com/ShishirPatil/gorilla (the folder, a "
    "BFCL_v4_multi_turn_*.json in it, or a tar archive)",
)
#: The file of a class's functions, where its name is not the class's own.
_DOCUMENT = {"twitter_api": "posting_api", "travel_api": "travel_booking", "vehicle_control_api": "vehicle_control"}
_NEW_FUNCTIONS = "I have updated some more functions you can choose from. What about now?"


def _document(class_name: str) -> str:
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", class_name).lower()
    return _DOCUMENT.get(snake, snake)


def _functions(files: Iterable[Source], malformed: Malformed) -> dict[str, list[dict[str, Any]]]:
    return {PurePath(f.name).name.split(".")[0]: [r.fields for r in records_of(f, malformed)] for f in files}


def _answers(files: Iterable[Source], malformed: Malformed) -> dict[str, list[list[str]]]:
    found = {}
    for file in files:
        for record in records_of(file, malformed):
            truth = record.fields.get("ground_truth")
            if isinstance(truth, list) and all(isinstance(t, list) for t in truth):
                found[str(record.fields.get("id"))] = [[str(call) for call in turn] for turn in truth]
    return found


def _calls(expected: Iterable[str]) -> tuple[str, ...]:
    return tuple(compact({"call": call}) for call in expected)


def _held_back(fields: Mapping[str, Any]) -> dict[int, list[str]]:
    missed = fields.get("missed_function") or {}
    try:
        return {int(turn): [str(name) for name in names] for turn, names in missed.items()}
    except (AttributeError, TypeError, ValueError):
        raise BadRecordError("missed_function is no object of lists by turn") from None


def load(**options: Any) -> Trace:
    """Load the tasks; conf/workload/bfcl.yaml lists the options.

    Raises:
        InputError: an option is impossible, or the data is absent or not in the format.
    """
    place = find(options["path"], TEXT.remedy)
    beside = place if place.is_dir() or is_archive(place) else place.parent
    aside = Malformed(str(beside), TEXT.expected, TEXT.remedy)

    def files(folder: str) -> list[Source]:
        if beside.is_dir() and not any(beside.rglob(f"{folder}/*.json")):
            return []
        return open_sources(beside, JSON_SUFFIXES, TEXT.remedy, lambda name: f"{folder}/" in name)

    functions = _functions(files("multi_turn_func_doc"), aside)
    answers = _answers(files("possible_answer"), aside)

    def dialogues(record: Record) -> Iterable[Dialogue]:
        fields = record.fields
        key, turns = str(pick(fields, "id")), pick(fields, "question")
        classes = fields.get("involved_classes") or []
        excluded = fields.get("excluded_function") or []
        if not isinstance(turns, list) or not isinstance(classes, list) or not isinstance(excluded, list):
            raise BadRecordError("question, involved_classes or excluded_function is no list")
        held = _held_back(fields)
        later = {name for names in held.values() for name in names}
        documents = [f for c in classes for f in functions.get(_document(str(c)), []) if f.get("name") not in excluded]
        tools = tools_of([d for d in documents if d.get("name") not in later])
        messages: list[Message] = []
        replies = []
        expected = answers.get(key, [])
        for n, turn in enumerate(turns):
            told = messages_of(turn)
            if n in held:
                added = [d for d in documents if d.get("name") in held[n]]
                told.append(Message("user", "\n".join([*(json.dumps(d) for d in added), _NEW_FUNCTIONS])))
            if not told:
                raise BadRecordError(f"turn {n} of question is empty")
            messages += told
            replies.append(len(messages))
            messages.append(Message("assistant", "", calls=_calls(expected[n] if n < len(expected) else [])))
        yield Dialogue(record.place, tuple(messages), tuple(replies), tools, key=key)

    def notes() -> dict[str, str]:
        return {
            "functions": f"{len(functions)} files of documents" if functions else "none found beside the tasks",
            "replies": f"the calls expected in {len(answers)} tasks" if answers else "empty: no possible_answer found",
        }

    return load_dialogues(
        options,
        TEXT,
        dialogues,
        suffixes=JSON_SUFFIXES,
        wanted=lambda name: "multi_turn" in PurePath(name).name and not re.search("func_doc/|possible_answer/", name),
        notes=notes,
    )
