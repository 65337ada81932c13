"""Where the siblings meet: config → statistics → preprocessing → model → training → artefacts.

Stages hand each other saved artefacts of the run folder.
"""
