# Shorthand. The commands themselves are in README.md and .ci/.

.PHONY: test demo ci lint format sanitize

test demo:
	@sed -n '/<!-- command: $@ -->/,/^```$$/p' README.md | sed '/^<!--/d; /^```/d' | sh -e

ci:
	bash .ci/run

lint:
	ruff check . && ruff format --check . && cython-lint kvfast_ext && mypy

format:
	ruff check --fix . && ruff format .

sanitize:
	.ci/sanitize "$${TMPDIR:-/tmp}/kvfast-sanitize"
