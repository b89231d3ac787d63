"""Token types of a live request: the same labeller and the same table of templates as for recorded ones."""

from __future__ import annotations

from saecache_rl.workloads.labels import Labels
from saecache_rl.workloads.templates import FORMATS, Template, find_template, template_of

__all__ = ["FORMATS", "Labels", "Template", "find_template", "template_of"]
