"""The tools that come with the package, one file each. Their words stand in ``prompts/tools/``.

The core knows none of them: it finds them by the entry point ``mlx_tools.tools``, as those of any
package.
"""

from mlx_tools.toolbox.builtin import builtin_tools as builtin_tools
from mlx_tools.toolbox.builtin import tools as tools

__all__ = ["builtin_tools", "tools"]
