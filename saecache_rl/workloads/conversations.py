"""Conversations to a trace: every reply of the assistant is a request, whose prompt is all that was said before.

Each loader of a text format is a function from its records to dialogues; the rest is here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from saecache_rl.vocabulary import TokenType
from saecache_rl.workloads.arrivals import Arrivals
from saecache_rl.workloads.chat_template import NO_TOKENS, STYLES, ChatTemplate, Tokens, join
from saecache_rl.workloads.messages import Dialogue, Message
from saecache_rl.workloads.options import choice
from saecache_rl.workloads.prompts import keeper
from saecache_rl.workloads.records import BadRecordError, Malformed, find
from saecache_rl.workloads.sources import TABLE_SUFFIXES, Record, Source, Text, open_sources, records_of
from saecache_rl.workloads.token_sessions import Limits, TokenRequest, TokenSession, trace_of_sessions
from saecache_rl.workloads.tokenizing import find_tokenizer
from saecache_rl.workloads.trace import ENDED_FOR_TOOL, HAS_TOOLS, Trace
from saecache_rl.workloads.words import hashed_words, latest_text

REASONING = ("dropped", "kept")

Read = Callable[[Record], Iterable[Dialogue]]


class Counts:
    """What happened on the way, for the notes."""

    def __init__(self) -> None:
        self.dialogues = self.repeated = self.unanswered = self.lost = 0


class Conversations(NamedTuple):
    """How a source's conversations are to be loaded; `read` checks the options."""

    template: ChatTemplate
    keep_reasoning: bool
    limits: Limits
    arrivals: Arrivals

    @staticmethod
    def read(options: Mapping[str, Any], recorded: bool, advice: str = "") -> Conversations:
        """Read the options that all loaders of texts share.

        Args:
            options: of the workload.
            recorded: the source may have times.
            advice: see `Arrivals.read`.

        Raises:
            InputError: an option is impossible.
        """
        return Conversations(
            arrivals=Arrivals.read(options, recorded, advice),
            limits=Limits.read(options),
            keep_reasoning=choice("workload.reasoning", options["reasoning"], REASONING) == "kept",
            template=ChatTemplate(
                choice("workload.template", options["template"], STYLES), find_tokenizer(options["tokenizer"])
            ),
        )

    def trace(
        self, name: str, source: str, dialogues: Iterable[Dialogue], notes: Callable[[], dict[str, str]]
    ) -> Trace:
        """Make the trace of dialogues.

        Args:
            name: of the workload.
            source: the file, for messages.
            dialogues: read once.
            notes: what the loader has to say, asked for when all dialogues are read.

        Raises:
            InputError: nothing is left of them, or times are missing.
        """
        counts = Counts()

        def all_notes() -> dict[str, str]:
            later = "kept" if self.keep_reasoning else "dropped"
            without = f"{counts.unanswered} without a request, {counts.repeated} repeated"
            return {
                **notes(),
                "conversations": f"{counts.dialogues} ({without})",
                "tokenizer": self.template.tokenizer.name,
                "template": self.template.name,
                "reasoning": f"{later} in later turns ({counts.lost} tokens lost)",
            }

        sessions = self._sessions(dialogues, counts)
        return trace_of_sessions(
            sessions, name=name, source=source, limits=self.limits, arrivals=self.arrivals, notes=all_notes
        )

    def _sessions(self, dialogues: Iterable[Dialogue], counts: Counts) -> Iterator[TokenSession]:
        """Render the dialogues; the parts of one session come last, in order of time, else of the source."""
        parts: dict[str, list[TokenRequest]] = {}
        seen: set[bytes] = set()
        for dialogue in dialogues:
            counts.dialogues += 1
            if not dialogue.replies:
                counts.unanswered += 1
                continue
            if dialogue.key is not None and not dialogue.part:
                # The same conversation under the same name again; the same name over another text is another one.
                content = repr((dialogue.key, dialogue.messages, dialogue.tools)).encode("utf-8", "replace")
                mark = hashlib.blake2b(content, digest_size=16).digest()
                if mark in seen:
                    counts.repeated += 1
                    continue
                seen.add(mark)
            requests = self._requests(dialogue, counts)
            if not requests:
                counts.unanswered += 1
            elif not dialogue.part or dialogue.key is None:
                yield TokenSession(requests, dialogue.anonymous)
            else:
                parts.setdefault(dialogue.key, []).extend(requests)
        for requests in parts.values():
            if all(r.seconds == r.seconds for r in requests):
                requests.sort(key=lambda r: r.seconds)
            yield TokenSession(requests)

    def _requests(self, dialogue: Dialogue, counts: Counts) -> list[TokenRequest]:
        messages, template = dialogue.messages, self.template
        head, begin = template.head(dialogue.tools, messages)
        closing = template.closing()
        last = dialogue.replies[-1]
        whole: list[list[Tokens]] = []  # per message, as it is in a prompt, reasoning and all
        bare: list[list[Tokens]] = []  # the same without reasoning
        spoken: list[Tokens] = []  # per message, the sampled tokens of a reply
        strips = False
        role = "system" if begin else "user"
        openings = []
        for message in messages[begin : last + 1]:
            openings.append(template.opening(role))
            reply = NO_TOKENS
            if message.role == "assistant":
                reply = template.reply(message)
                whole.append([openings[-1], reply, closing])
                bare.append(whole[-1])
                if message.reasoning and not self.keep_reasoning:
                    strips = True
                    shown = template.reply(Message("assistant", message.content, "", message.calls))
                    bare[-1] = [openings[-1], shown, closing]
            else:
                whole.append([template.turn(message)])
                bare.append(whole[-1])
            spoken.append(reply)
            role = message.role
        openings.append(template.opening(role))
        timeline = None if strips else join([head, *(part for parts in whole for part in parts)])
        sizes = np.cumsum([len(head.ids), *(sum(len(p.ids) for p in parts) for parts in whole)])
        found = []
        tools = bool(dialogue.tools) or any(m.role == "tool" or m.calls for m in messages[:begin])
        scanned = begin
        for n, at in enumerate(dialogue.replies):
            tools = tools or any(m.role == "tool" or m.calls for m in messages[scanned:at])
            scanned = at
            here = at - begin
            known = spoken[here] if here < len(spoken) else NO_TOKENS
            message = messages[at] if at < len(messages) else Message("assistant", "")
            opening = openings[here]
            if timeline is None or here >= len(spoken):
                # Reasoning is left out of what came before the latest message of a person.
                asked = max((i for i in range(begin, at) if messages[i].role == "user"), default=begin) - begin
                before = [*bare[:asked], *whole[asked:here]] if strips else whole[:here]
                prompt = join([head, *(part for parts in before for part in parts), opening])
                tokens, length = join([prompt, known]), len(prompt.ids)
                if strips and n + 1 < len(dialogue.replies):
                    later = messages[at + 1 : dialogue.replies[n + 1]]
                    if any(m.role == "user" for m in later):
                        counts.lost += int(np.count_nonzero(known.kinds == TokenType.REASONING))
            else:
                tokens, length = timeline, int(sizes[here]) + len(opening.ids)
            if length == 0:
                continue  # nothing was said, and no template says anything either
            told = dialogue.output_tokens[n] if dialogue.output_tokens else None
            output = len(known.ids) if told is None or len(known.ids) else told
            ended = at < len(messages) and bool(message.calls)
            found.append(
                TokenRequest(
                    tokens=tokens,
                    prompt_tokens=length,
                    output_tokens=output,
                    known=len(known.ids),
                    flags=HAS_TOOLS * tools | ENDED_FOR_TOOL * ended,
                    seconds=_seconds(dialogue, n),
                    words=hashed_words(messages[:at], message),
                    text=latest_text(messages[:at]) if keeper() is not None else None,
                )
            )
        return found


def _seconds(dialogue: Dialogue, n: int) -> float:
    if dialogue.seconds is not None:
        return dialogue.seconds[n]
    return dialogue.start if n == 0 and dialogue.start is not None else float("nan")


def dialogues_of(sources: Iterable[Source], read: Read, malformed: Malformed) -> Iterator[Dialogue]:
    """Yield the dialogues of all records; those of a malformed one are left out and counted.

    Raises:
        InputError: more than one record in a hundred is malformed.
    """
    for source in sources:
        for record in records_of(source, malformed):
            try:
                yield from list(read(record))
            except BadRecordError as problem:
                malformed.add(record.place, problem)
    malformed.check()


def load_dialogues(
    options: Mapping[str, Any],
    text: Text,
    read: Read,
    *,
    recorded: bool = False,
    advice: str = "",
    suffixes: tuple[str, ...] = TABLE_SUFFIXES,
    wanted: Callable[[str], bool] = lambda _: True,
    notes: Callable[[], dict[str, str]] = dict,
    gather: Callable[[Iterator[Dialogue]], Iterable[Dialogue]] = lambda dialogues: dialogues,
) -> Trace:
    """Load a workload whose records are dialogues.

    Args:
        options: of the workload.
        text: of the format.
        read: a record's dialogues.
        recorded, advice: see `Arrivals.read`.
        suffixes, wanted: files that count in a folder or an archive.
        notes: what else goes into the trace's notes.
        gather: what must be done with all dialogues together.

    Raises:
        InputError: an option is impossible, or the data is absent or not in the format.
    """
    conversations = Conversations.read(options, recorded, advice)
    place = find(options["path"], text.remedy)
    malformed = Malformed(str(place), text.expected, text.remedy)
    sources = open_sources(place, suffixes, text.remedy, wanted)

    def said() -> dict[str, str]:
        return {"file": place.name, "malformed_records": malformed.note(), **notes()}

    return conversations.trace(str(options["name"]), str(place), gather(dialogues_of(sources, read, malformed)), said)
