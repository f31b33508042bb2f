import pytest
from helpers import Corpus, make_corpus


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Corpus:
    return make_corpus(tmp_path_factory.mktemp("corpus"))
