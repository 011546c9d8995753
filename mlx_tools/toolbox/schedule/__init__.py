"""Jobs: tasks that a model is given at a time, or repeatedly.

`when` parses times. `job_store` keeps the jobs and the results of their runs. `runner` runs what is
due. How a job asks a model is not known here: `mlx_tools.cli.schedule` does it with a `Controller`.
"""
