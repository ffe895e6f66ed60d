// Python bindings of the draft tree search.
#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "bindings.h"
#include "dart/tree_search.h"
#include "numpy_arrays.h"

namespace {

std::unique_ptr<dart::TreeSearch> make_tree_search(const PyNgramModel* ngram, int nodes, int beam,
                                                   double level_decay, double logit_decay,
                                                   float ngram_weight, float eps,
                                                   std::vector<std::int32_t> eos, int threads) {
  return std::make_unique<dart::TreeSearch>(
      ngram == nullptr ? nullptr : &ngram->model,
      dart::TreeSearchConfig{nodes, beam, level_decay, logit_decay, ngram_weight, eps,
                             std::move(eos), threads});
}

void search(const dart::TreeSearch& self, const py::array& packed, py::array& out,
            std::size_t context, std::size_t levels, std::size_t candidates, bool pairs,
            bool draws) {
  dart::DraftBatch batch{nullptr, 0, context, levels, candidates, pairs, draws};
  if (context == 0) throw py::value_error("context must hold at least the root");
  check_array<std::int32_t>(packed, "packed", {kAny, py::ssize_t(batch.width())});
  check_array<std::int32_t>(out, "out",
                            {packed.shape(0), py::ssize_t(dart::kTreeRows),
                             py::ssize_t(self.config().nodes) + 1});
  if (!out.writeable()) throw py::value_error("out must be writeable");
  batch.packed = data<std::int32_t>(packed);
  batch.rows = static_cast<std::size_t>(packed.shape(0));
  auto* trees = static_cast<std::int32_t*>(out.mutable_data());
  py::gil_scoped_release release;
  self.search(batch, trees);
}

}  // namespace

void bind_search(py::module_& m) {
  const dart::TreeSearchConfig defaults;
  py::class_<dart::TreeSearch>(m, "TreeSearch")
      .def(py::init(&make_tree_search), py::arg("ngram"), py::kw_only(), py::arg("nodes"),
           py::arg("beam") = defaults.beam, py::arg("level_decay") = defaults.level_decay,
           py::arg("logit_decay") = defaults.logit_decay,
           py::arg("ngram_weight") = defaults.ngram_weight, py::arg("eps") = defaults.eps,
           py::arg("eos") = defaults.eos, py::arg("threads") = defaults.threads,
           py::keep_alive<1, 2>())  // the search reads the model
      .def("search", &search, py::arg("packed"), py::arg("out"), py::kw_only(),
           py::arg("context"), py::arg("levels"), py::arg("candidates"),
           py::arg("pairs") = false, py::arg("draws") = false)
      .def_property_readonly("handle", &dart::TreeSearch::handle)
      .def_property_readonly("seconds", &dart::TreeSearch::seconds);
}
