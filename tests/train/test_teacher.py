"""The target's outputs are those of decoding: with weights as stored, for each text by itself."""

import gguf
import jax
import jax.numpy as jnp
import numpy as np
from gguf_files import write
from needs import native as needs_native

from dart_jax.models.config import TargetConfig
from dart_jax.models.networks.pure import bind, init_params
from dart_jax.weights import hub
from dart_jax.weights.checkpoint import save_target
from train.data.batch import Batch
from train.run.mesh import make_mesh
from train.teacher.teacher import Teacher, forward


@needs_native
def test_outputs_are_those_of_decoding(tmp_path):
    """Bit for bit, also of texts that share a row."""
    config = TargetConfig(61, 64, 128, 8, 4, 2, 16, model_type="llama")
    save_target(tmp_path / "hf", config, init_params(config, 0))
    (tmp_path / "gguf").mkdir()
    kinds = {".": gguf.GGMLQuantizationType.Q4_0}
    file = write(tmp_path / "gguf" / "model.gguf", tmp_path / "hf", kinds=kinds)
    teacher = Teacher.load(
        hub.resolve(str(file), patterns=hub.TARGET), np.dtype("float32"), make_mesh()
    )
    served = teacher.as_served()
    tokens = np.random.default_rng(0).integers(0, 61, (2, 24)).astype(np.int32)
    document = np.repeat([[1, 2, 0], [1, 1, 1]], [10, 12, 2], axis=1).astype(np.int32)
    batch = Batch(tokens, document, document > 0)
    features, hidden = jax.jit(
        lambda params: forward(served.config, params, batch, options=served.options)
    )(served.params)
    target = bind(served.config, served.params, served.options)
    for row, places in ((0, slice(0, 10)), (0, slice(10, 22)), (1, slice(0, 24))):
        text = jnp.asarray(tokens[row : row + 1, places])
        place = jnp.arange(text.shape[1], dtype=jnp.int32)[None]
        alone = target(text, place, jnp.tril(jnp.ones((1, place.size, place.size), bool)))
        np.testing.assert_array_equal(features[row, places], alone.features[0])
        np.testing.assert_array_equal(hidden[row, places], alone.hidden[0])
    floats, _ = forward(teacher.config, teacher.params, batch)
    assert features.size
    assert not np.allclose(features[1], floats[1], rtol=0, atol=1e-4)
    np.testing.assert_allclose(features[1], floats[1], rtol=0, atol=0.1 * np.abs(floats[1]).max())
