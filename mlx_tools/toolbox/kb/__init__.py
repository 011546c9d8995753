"""The knowledge base: files of one's own, found by a question in plain words."""

from mlx_tools.toolbox.kb.adding import Added as Added
from mlx_tools.toolbox.kb.adding import Skipped as Skipped
from mlx_tools.toolbox.kb.knowledge_base import Corpus as Corpus
from mlx_tools.toolbox.kb.knowledge_base import KnowledgeBase as KnowledgeBase
from mlx_tools.toolbox.kb.search import Hit as Hit

__all__ = ["Added", "Corpus", "Hit", "KnowledgeBase", "Skipped"]
