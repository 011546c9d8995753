"""Jobs: tasks that a model is given at a time, or again and again.

`parse_when` reads when; `JobStore` keeps the jobs and what came of them; `Runner` runs what is due.
How a job asks a model is not known here: `mlx_tools.cli.job_runs` does it with a `Controller`.
"""

from mlx_tools.toolbox.schedule.interval import Interval
from mlx_tools.toolbox.schedule.job import Job, JobRun, Listed, Missed, RunEnd, RunStatus, Seen
from mlx_tools.toolbox.schedule.job_store import JobStore
from mlx_tools.toolbox.schedule.runner import Ended, Runner, settle
from mlx_tools.toolbox.schedule.when import When, parse_when
from mlx_tools.toolbox.schedule.zones import local_zone, zone_of

__all__ = [
    "Ended",
    "Interval",
    "Job",
    "JobRun",
    "JobStore",
    "Listed",
    "Missed",
    "RunEnd",
    "RunStatus",
    "Runner",
    "Seen",
    "When",
    "local_zone",
    "parse_when",
    "settle",
    "zone_of",
]
