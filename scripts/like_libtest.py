"""Runs tests in Python and prints what a Rust test program prints, so that scripts/test-summary counts them too."""

import unittest


def name(test):
    """A test's name as Rust writes it."""
    return test.id().removeprefix("__main__.").replace(".", "::")


class LikeLibtest(unittest.TestResult):
    """Prints results as a Rust test program does."""

    def __init__(self):
        super().__init__()
        self.passed = 0

    def say(self, test, how):
        print(f"test {name(test)} ... {how}", flush=True)

    def addSuccess(self, test):
        self.passed += 1
        self.say(test, "ok")

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.say(test, "FAILED")
        print(self.failures[-1][1])

    def addError(self, test, err):
        super().addError(test, err)
        self.say(test, "FAILED")
        print(self.errors[-1][1])

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        print(f"skipped: {test.id().rsplit('.', 1)[-1]}: {reason}", flush=True)


def run(module):
    """Runs the tests of a module; whether any failed."""
    result = LikeLibtest()
    unittest.defaultTestLoader.loadTestsFromModule(module).run(result)
    failed = len(result.failures) + len(result.errors)
    verdict = "FAILED" if failed else "ok"
    print(f"test result: {verdict}. {result.passed} passed; {failed} failed; 0 ignored", flush=True)
    return failed > 0
