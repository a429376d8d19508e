"""The little of lm-evaluation-harness that a model class needs, with its names: tests run without the harness."""
