#include "convert/merged_source.h"

#include <optional>

#include "tensor/decode.h"

namespace lapidary {
namespace {

// By the tensor's name: "layers.3.mlp.up_proj.weight", "layers.3.experts.down_proj".
std::optional<AdapterSite> SiteOf(const TensorSpec& spec) {
  std::string_view name = spec.name;
  if (spec.layer >= 0) name.remove_prefix(name.find('.', std::string_view("layers.").size()) + 1);
  if (name.ends_with(".weight")) name.remove_suffix(std::string_view(".weight").size());
  for (int site = 0; site < kNumAdapterSites; ++site) {
    if (AdapterSiteName(static_cast<AdapterSite>(site)) == name) {
      return static_cast<AdapterSite>(site);
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<MergedSource::Addend> MergedSource::AddendsOf(const TensorSpec& spec) const {
  std::vector<Addend> addends;
  const std::optional<AdapterSite> site = SiteOf(spec);
  if (!site) return addends;
  if (*site != AdapterSite::kExpertGateUp && *site != AdapterSite::kExpertDown) {
    const LoraDelta* const delta = adapter_->Find(*site, spec.layer);
    if (delta != nullptr) addends.push_back({delta, delta->first_row});
    return addends;
  }
  for (int expert = 0; expert < plan_.moe->num_experts; ++expert) {
    for (const LoraDelta& delta : adapter_->OfExpert(*site, spec.layer, expert)) {
      addends.push_back({&delta, expert * spec.shape[1] + delta.first_row});
    }
  }
  return addends;
}

Result<TensorView> MergedSource::Get(const TensorSpec& spec) const {
  ASSIGN_OR_RETURN(const TensorView base, base_->Get(spec));
  const std::vector<Addend> addends = AddendsOf(spec);
  if (addends.empty()) return base;
  merged_ = ToFloats(base);
  const int64_t cols = spec.shape.back();
  for (const auto& [delta, first_row] : addends) {
    const std::vector<float> a = DecodeMatrix(delta->a);
    const std::vector<float> b = DecodeMatrix(delta->b);
    const int64_t rank = delta->a.rows;
    constexpr int64_t kGrain = 16;
    threads_.ParallelFor(delta->b.rows, kGrain, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        float* const out = merged_.data() + (first_row + row) * cols;
        for (int64_t idx = 0; idx < rank; ++idx) {
          const float factor = delta->scale * b[row * rank + idx];
          for (int64_t col = 0; col < cols; ++col) out[col] += factor * a[idx * cols + col];
        }
      }
    });
  }
  return TensorView{reinterpret_cast<const std::byte*>(merged_.data()), DType::kF32, spec.shape};
}

Result<std::vector<MatrixRef>> MergedSource::GetStored(const TensorSpec& spec) const {
  ASSIGN_OR_RETURN(std::vector<MatrixRef> stored, base_->GetStored(spec));
  if (AddendsOf(spec).empty()) return stored;
  const int64_t cols = spec.shape.back();
  return std::vector<MatrixRef>{{.data = stored.front().data,
                                 .format = FormatOf(DType::kF32),
                                 .rows = static_cast<int>(spec.num_elements() / cols),
                                 .cols = static_cast<int>(cols)}};
}

}  // namespace lapidary
