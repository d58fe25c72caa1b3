"""Trains the demo model: ``python -m tools.train_demo --help``; docs/demo-model.md describes it.

``prepare`` and ``export`` use the package, ``train`` needs torch and transformers alone, so that
it runs on a machine to which nothing but this folder and the prepared one was copied.
"""
