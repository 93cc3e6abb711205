import pytest

from rankwise.errors import ConfigError
from rankwise.lab.defaults import EXTERNAL_NETWORKS, NETWORKS, Defaults, get_defaults
from rankwise.lab.networks import EXTERNAL_PACKAGES, IMAGE_NETWORKS
from rankwise.lab.networks.language import LANGUAGE_NETWORKS
from rankwise.lab.optimizers import OPTIMIZERS
from rankwise.lab.schedules import SCHEDULES
from rankwise.lab.tasks.gan import GAN_NETWORKS

KINDS = ("image", "language", "gpt", "gan")


@pytest.mark.parametrize(
    ("optimizer", "kind", "lr"),
    [
        ("adabound", "image", 0.01),
        ("adagrad", "image", 0.01),
        ("adam", "image", 3e-4),
        ("adamp", "image", 0.01),
        ("sls", "image", 1.0),
        ("sgd", "image", 0.1),
        ("sgdp", "image", 0.1),
        ("rmsgd", "image", 0.03),
        ("rmsgd", "language", 15.0),
        ("sgd", "language", 30.0),
        ("adam", "language", 0.01),
        ("adabelief", "language", 0.01),
        ("adamw", "language", 0.001),
        ("radam", "language", 0.001),
        ("rmsgd", "gan", 0.5),
        ("sgd", "gan", 0.1),
        ("sam", "gan", 0.5),
        ("adabelief", "gan", 3e-4),
        ("radam", "gan", 3e-4),
        ("adam", "gan", 3e-4),
        ("rmsprop", "gan", 3e-4),
        ("adabound", "gan", 3e-4),
    ],
)
def test_rates_are_the_papers(optimizer, kind, lr):
    assert get_defaults(optimizer, kind).lr == lr


@pytest.mark.parametrize(
    "optimizer",
    ["adabound", "adagrad", "adam", "adamp", "sls", "sam", "sgd", "sgdp"],
)
def test_the_papers_settings_for_images(optimizer):
    found = get_defaults(optimizer, "image")
    assert found == Defaults(found.lr, 5e-4, 0.9, None, "none", 25, 0.5, None, 128)


@pytest.mark.parametrize("optimizer", ["adam", "adabelief", "adamw", "radam"])
def test_the_papers_settings_for_language(optimizer):
    found = get_defaults(optimizer, "language")
    assert found == Defaults(found.lr, 1e-6, 0.9, None, "step", 75, 0.1, 0.25, 80)


def test_sams_rate_for_images_is_one_at_which_it_trains():
    assert get_defaults("sam", "image").lr == get_defaults("sgd", "image").lr == 0.1


def test_rmsgds_own_settings():
    image, language, gpt, gan = (get_defaults("rmsgd", kind) for kind in KINDS)
    assert image == Defaults(0.03, 5e-4, 0.9, 0.98, "none", 25, 0.5, None, 128)
    assert language == Defaults(15.0, 1e-6, 0.9, 0.9, "none", 75, 0.1, 0.25, 80)
    assert gpt == Defaults(0.03, 5e-4, 0.9, 0.9, "none", 25, 0.5, 1.0, 80)
    assert gan == Defaults(0.5, 0.0, 0.9, 0.95, "none", 25, 0.5, None, 64)


@pytest.mark.parametrize("kind", KINDS)
def test_every_optimizer_has_settings_that_it_accepts(kind):
    for name in OPTIMIZERS:
        found = get_defaults(name, kind)
        assert found.lr > 0
        assert found.weight_decay >= 0
        assert 0 <= found.momentum < 1
        assert (found.beta is not None) == (name == "rmsgd")
        assert found.schedule in SCHEDULES


@pytest.mark.parametrize("kind", KINDS)
def test_published_rates_and_schedules_belong_to_the_method(kind):
    prodigy = get_defaults("prodigy", kind)
    assert (prodigy.lr, prodigy.schedule) == (1.0, "cosine")
    for name in ("schedulefree-sgd", "schedulefree-adamw"):
        found = get_defaults(name, kind)
        assert (found.schedule, found.momentum) == ("none", 0.9)
    assert get_defaults("schedulefree-adamw", kind).lr == 0.0025
    assert get_defaults("lamb", kind).lr == 0.001


def test_an_unknown_optimizer_or_kind_is_refused_in_a_sentence():
    with pytest.raises(ConfigError, match=r"There is no optimizer 'adaam'.*adam"):
        get_defaults("adaam", "image")
    with pytest.raises(ConfigError, match=r"'audio'.*image, language, gpt, gan"):
        get_defaults("sgd", "audio")


def test_without_momentum_the_lstms_rate_for_sgd_is_one_at_which_it_trains():
    assert get_defaults("sgd", "language").momentum == 0
    assert get_defaults("sgd-nesterov", "language").momentum == 0.9


def test_names_of_networks_are_those_that_can_be_built():
    assert set(NETWORKS["image"]) == set(IMAGE_NETWORKS)
    assert {*NETWORKS["language"], *NETWORKS["gpt"]} == set(LANGUAGE_NETWORKS)
    assert set(NETWORKS["gan"]) == set(GAN_NETWORKS)
    assert set(EXTERNAL_NETWORKS) == set(EXTERNAL_PACKAGES)
