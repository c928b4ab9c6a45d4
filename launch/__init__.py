"""Run, resume and watch suites of training runs, and execute the book's chapters: papermill over `notebooks/`.

`python -m launch --help` lists the verbs. `launch` uses `depthbench`; `depthbench` never imports `launch`.
"""
