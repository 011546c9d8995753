"""Jobs: tasks that a model is given at a time, or again and again.

`when` reads when; `job_store` keeps the jobs and what came of them; `runner` runs what is due. How
a job asks a model is not known here: `mlx_tools.cli.schedule` does it with a `Controller`.
"""
