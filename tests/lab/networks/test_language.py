"""The language models: sizes, what they see, what they carry on."""

import copy
import math

import pytest
import torch

import rankwise
from rankwise.errors import ConfigError
from rankwise.lab.networks.language import (
    LANGUAGE_NETWORKS,
    LSTMLanguageModel,
    build_language_network,
)
from rankwise.lab.networks.transformer import GPT

V, T, B = 30, 7, 3
NAMES = sorted(LANGUAGE_NETWORKS)
TIED = pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])


@pytest.fixture
def words():
    return torch.randint(V, (T, B))


def small(name, **options):
    return build_language_network(name, V, **{"width": 0.125, "context": T, **options})


def count(model):
    return sum(weight.numel() for weight in model.parameters())


def lstm_size(inputs, size):
    return 4 * (inputs * size + size * size + 2 * size)


@pytest.mark.parametrize("name", NAMES)
@TIED
def test_every_word_gets_logits_over_the_vocabulary(name, tied, words):
    logits, _ = small(name, tied=tied)(words)
    assert logits.shape == (T, B, V)


@pytest.mark.parametrize("name", NAMES)
@TIED
def test_every_parameter_gets_a_gradient(name, tied, words):
    model = small(name, tied=tied)
    logits, _ = model(words)
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), words.flatten()).backward()
    for weight_name, weight in model.named_parameters():
        assert weight.grad.isfinite().all(), weight_name
        assert weight.grad.abs().sum() > 0, weight_name


@pytest.mark.parametrize("name", NAMES)
def test_a_later_word_never_changes_earlier_logits(name, words):
    model = small(name).eval()
    changed = words.clone()
    changed[4] = (changed[4] + 1) % V
    before, after = model(words)[0], model(changed)[0]
    torch.testing.assert_close(before[:4], after[:4], rtol=0, atol=1e-6)
    assert (before[4:] - after[4:]).abs().amax(dim=(1, 2)).min() > 1e-5  # it does change later ones


@pytest.mark.parametrize("name", NAMES)
def test_texts_of_a_batch_do_not_see_each_other(name, words):
    model = small(name).eval()
    torch.testing.assert_close(model(words)[0][:, 1:2], model(words[:, 1:2])[0])


@pytest.mark.parametrize("layers", [1, 2, 3])
@TIED
def test_an_lstm_that_carries_its_state_reads_pieces_as_one_text(layers, tied, words):
    model = LSTMLanguageModel(V, layers=layers, embedding=5, hidden=9, tied=tied).eval()
    whole, end = model(words)
    first, state = model(words[:3])
    second, state = model(words[3:], state)
    torch.testing.assert_close(torch.cat([first, second]), whole)
    torch.testing.assert_close(state, end)


def test_an_lstm_without_its_state_starts_anew(words):
    model = LSTMLanguageModel(V, layers=1, embedding=5).eval()
    _, state = model(words[:3])
    assert not torch.allclose(model(words[3:])[0], model(words[3:], state)[0])


@pytest.mark.parametrize(
    ("layers", "sizes"),
    [
        (1, [(400, 400)]),
        (2, [(400, 1150), (1150, 400)]),
        (3, [(400, 1150), (1150, 1150), (1150, 400)]),
    ],
    ids=["1", "2", "3"],
)
def test_a_tied_lstm_has_the_published_sizes(layers, sizes):
    with torch.device("meta"):
        model = build_language_network(f"lstm{layers}", 10_000)
    assert count(model) == 10_000 * 400 + sum(lstm_size(*pair) for pair in sizes) + 10_000


def test_an_untied_lstm_is_wide_to_the_end_and_has_a_decoder_of_its_own():
    model = LSTMLanguageModel(V, layers=2, embedding=5, hidden=9, tied=False)
    assert count(model) == V * 5 + lstm_size(5, 9) + lstm_size(9, 9) + V * 9 + V


@TIED
def test_a_gpt_has_the_parameters_of_its_formula(tied):
    w, layers, context = 16, 2, 11
    model = GPT(V, layers=layers, heads=4, width=w, context=context, tied=tied)
    block = 2 * 2 * w + (3 * w * w + 3 * w) + (w * w + w) + (4 * w * w + 4 * w) + (4 * w * w + w)
    head = 0 if tied else V * w
    assert count(model) == V * w + context * w + layers * block + 2 * w + head


@pytest.mark.parametrize("name", NAMES)
def test_a_tied_weight_is_one_parameter_also_in_a_copy(name):
    for model in (small(name), copy.deepcopy(small(name))):
        assert model.decoder.weight is model.embedding.weight
        assert sum(weight is model.embedding.weight for weight in model.parameters()) == 1


def test_lstm_weights_start_within_their_bounds():
    model = LSTMLanguageModel(V, layers=2, embedding=25, hidden=100, tied=False)
    bounds = [(model.embedding.weight, 0.1), (model.decoder.weight, 0.1)]
    bounds += [(layer.weight_hh_l0, 1 / layer.hidden_size**0.5) for layer in model.layers]
    for weight, bound in bounds:
        assert 0.9 * bound < weight.abs().max() <= bound
    assert not model.decoder.bias.any()


def test_gpt_weights_start_as_gpt_2s():
    model = GPT(500, layers=8, width=64)
    block = model.blocks[3]
    for weight in (model.embedding.weight, block.attention.qkv.weight, block.mlp.widen.weight):
        assert weight.std().item() == pytest.approx(0.02, rel=0.05)
    for weight in (block.attention.projection.weight, block.mlp.projection.weight):
        assert weight.std().item() == pytest.approx(0.02 / 16**0.5, rel=0.05)


def test_a_gpt_tells_the_order_of_words():
    model = small("gpt").eval()
    one, other = torch.tensor([[1, 2, 3], [2, 1, 3]])
    # Without positions the last word would attend to the same set of words.
    one, other = (model(text[:, None])[0][-1] for text in (one, other))
    assert (one - other).abs().max() > 1e-5


def test_a_gpt_carries_nothing_on_and_refuses_more_than_its_context(words):
    model = small("gpt", context=T - 1)
    assert model(words[1:])[1] is None
    with pytest.raises(ConfigError, match=f"at most {T - 1} words.*got {T}"):
        model(words)


@pytest.mark.parametrize("name", NAMES)
def test_dropout_is_the_given_one_and_off_when_evaluated(name, words):
    noisy, sure = small(name, dropout=0.5), small(name, dropout=0.0)
    assert not torch.equal(noisy(words)[0], noisy(words)[0])
    assert torch.equal(sure(words)[0], sure(words)[0])
    noisy.eval()
    assert torch.equal(noisy(words)[0], noisy(words)[0])


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_an_lstm_drops_from_the_embeddings_and_after_every_layer(layers, words):
    model = LSTMLanguageModel(V, layers=layers, embedding=5, hidden=9)
    dropped = []
    model.dropout.register_forward_hook(lambda _, __, output: dropped.append(output.shape[-1]))
    model(words)
    assert dropped == [5, *[9] * (layers - 1), 5]


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("lstm1", (200, 200)), ("lstm2", (200, 575)), ("gpt", (64, 64))],
    ids=["lstm1", "lstm2", "gpt"],
)
def test_width_scales_the_sizes(name, sizes):
    model = build_language_network(name, V, width=0.5)
    inner = model.blocks[0].norm1.weight if name == "gpt" else model.layers[0].weight_hh_l0.T
    assert (model.embedding.embedding_dim, len(inner)) == sizes


def test_a_gpts_width_stays_a_multiple_of_its_heads():
    assert build_language_network("gpt", V, width=0.37).embedding.embedding_dim == 48
    assert build_language_network("gpt", V, width=0.001).embedding.embedding_dim == 4


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"name": "elman"}, "lstm1, lstm2, lstm3, gpt; got 'elman'"),
        ({"width": 0.0}, "width above 0"),
        ({"width": float("nan")}, "width above 0"),
        ({"dropout": 1.0}, "dropout"),
        ({"vocabulary": 0}, "vocabulary"),
        ({"context": 0}, "context"),
    ],
    ids=["name", "width-0", "width-nan", "dropout", "vocabulary", "context"],
)
def test_an_option_out_of_range_is_refused_in_a_sentence(options, text):
    with pytest.raises(ConfigError, match=text):
        build_language_network(**{"name": "gpt", "vocabulary": V, **options})


def test_a_network_of_no_layers_or_uneven_heads_is_refused():
    with pytest.raises(ConfigError, match="1 layer or more"):
        LSTMLanguageModel(V, layers=0)
    with pytest.raises(ConfigError, match="multiple of the 3 heads, got 16"):
        GPT(V, heads=3, width=16)


@pytest.mark.parametrize("name", NAMES)
def test_a_probe_sees_every_matrix_and_a_tied_one_once(name):
    model = small(name)
    probe = rankwise.probe(model)
    assert sum(layer.status is rankwise.Status.TIED for layer in probe.layers) == 1
    matrices = {id(weight) for weight in model.parameters() if weight.ndim >= 2}
    assert len(probe.probed) == len(matrices)
    assert probe.parameters == count(model)


def test_a_split_probe_sees_q_k_and_v_and_every_gate():
    names = {layer.name for layer in rankwise.probe(small("gpt"), split=True).probed}
    assert {f"blocks.0.attention.qkv.weight[{letter}]" for letter in "qkv"} <= names
    gates = [
        layer for layer in rankwise.probe(small("lstm2"), split=True).probed if "[" in layer.name
    ]
    assert len(gates) == 2 * 2 * 4


@pytest.mark.parametrize("name", NAMES)
def test_it_learns_a_text_that_repeats_itself(name):
    model = small(name, dropout=0.0, tied=False)
    text = (torch.arange(8 * T) % 5).view(-1, T).T
    following = (text + 1) % 5
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(80):
        loss = torch.nn.functional.cross_entropy(model(text)[0].flatten(0, 1), following.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    # It knows more than how often each of the five words comes.
    assert loss.item() < math.log(5) / 4
