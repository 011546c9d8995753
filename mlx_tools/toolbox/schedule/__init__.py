"""Jobs: tasks that a model is given at a time, or again and again.

`parse_when` reads when; `JobStore` keeps the jobs and what came of them; `Runner` runs what is due.
How a job asks a model is not known here: `mlx_tools.cli.schedule` does it with a `Controller`.
"""

from mlx_tools.toolbox.schedule.job import MISSED as MISSED
from mlx_tools.toolbox.schedule.job import OPEN as OPEN
from mlx_tools.toolbox.schedule.job import Job as Job
from mlx_tools.toolbox.schedule.job import JobRun as JobRun
from mlx_tools.toolbox.schedule.job import Listed as Listed
from mlx_tools.toolbox.schedule.job import Missed as Missed
from mlx_tools.toolbox.schedule.job import RunEnd as RunEnd
from mlx_tools.toolbox.schedule.job import Seen as Seen
from mlx_tools.toolbox.schedule.job_store import JobStore as JobStore
from mlx_tools.toolbox.schedule.job_store import utc_now as utc_now
from mlx_tools.toolbox.schedule.runner import Ended as Ended
from mlx_tools.toolbox.schedule.runner import Runner as Runner
from mlx_tools.toolbox.schedule.runner import settle as settle
from mlx_tools.toolbox.schedule.when import Interval as Interval
from mlx_tools.toolbox.schedule.when import When as When
from mlx_tools.toolbox.schedule.when import parse_when as parse_when
