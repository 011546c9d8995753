"""The knowledge base: files of one's own, found by a question in plain words."""

from mlx_tools.toolbox.kb.documents import BINARY as BINARY
from mlx_tools.toolbox.kb.knowledge_base import DEFAULT_CORPUS as DEFAULT_CORPUS
from mlx_tools.toolbox.kb.knowledge_base import DEFAULT_LIMIT as DEFAULT_LIMIT
from mlx_tools.toolbox.kb.knowledge_base import MAX_LIMIT as MAX_LIMIT
from mlx_tools.toolbox.kb.knowledge_base import Added as Added
from mlx_tools.toolbox.kb.knowledge_base import Corpus as Corpus
from mlx_tools.toolbox.kb.knowledge_base import KnowledgeBase as KnowledgeBase
from mlx_tools.toolbox.kb.knowledge_base import OnProgress as OnProgress
from mlx_tools.toolbox.kb.knowledge_base import Skipped as Skipped
from mlx_tools.toolbox.kb.search import Hit as Hit

__all__ = [
    *("BINARY", "DEFAULT_CORPUS", "DEFAULT_LIMIT", "MAX_LIMIT", "Added", "Corpus", "Hit"),
    *("KnowledgeBase", "OnProgress", "Skipped"),
]
