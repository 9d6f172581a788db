"""Virtual environments in `<home>/envs/NAME`, made from what an engine or a stage says that it needs.

The description of one is `bitbench.study.environment.Environment`; nothing here knows an engine by name.
"""
