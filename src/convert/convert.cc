#include "convert/convert.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <optional>

#include "base/progress.h"
#include "convert/gguf_text_writer.h"
#include "gguf/gguf_metadata.h"
#include "gguf/gguf_names.h"
#include "model/weight_plan.h"
#include "tensor/block_formats.h"
#include "tensor/quantise.h"

namespace lapidary {
namespace {

// Elements [first, first + count) of a tensor, whole blocks, as floats.
void ReadFloats(const TensorView& tensor, int64_t first, int64_t count, float* out) {
  const TensorView part{tensor.data + DTypeBytes(tensor.dtype, first), tensor.dtype, {count}};
  const std::vector<float> values = ToFloats(part);
  std::copy(values.begin(), values.end(), out);
}

struct Errors {
  double squares = 0.0;
  double squared_errors = 0.0;
};

// Pieces of a tensor are made by all threads, then written in order.
class TensorWriter {
 public:
  TensorWriter(std::ofstream& file, Progress& progress, ThreadPool& threads)
      : file_(file), progress_(progress), threads_(threads) {}

  // Returns the relative error.
  double Write(const TensorView& tensor, DType to) {
    constexpr int64_t kPiece = int64_t{1} << 16;  // a multiple of every block
    const int64_t total = tensor.num_elements();
    const int64_t at_once = kPiece * 8 * threads_.num_threads();
    Errors sum;
    for (int64_t done = 0; done < total; done += at_once) {
      const int64_t count = std::min(at_once, total - done);
      buffer_.resize(DTypeBytes(to, count));
      std::vector<Errors> errors((count + kPiece - 1) / kPiece);
      threads_.ParallelFor(count, kPiece, [&](int64_t begin, int64_t end, int) {
        errors[begin / kPiece] =
            Store(tensor, done + begin, end - begin, to, buffer_.data() + DTypeBytes(to, begin));
      });
      for (const Errors& part : errors) {
        sum.squares += part.squares;
        sum.squared_errors += part.squared_errors;
      }
      file_.write(reinterpret_cast<const char*>(buffer_.data()),
                  static_cast<std::streamsize>(buffer_.size()));
      progress_.Advance(count);
    }
    constexpr char kZeros[GgufWriter::kAlignment] = {};
    const int64_t end = DTypeBytes(to, total);
    const int64_t rest = end % static_cast<int64_t>(GgufWriter::kAlignment);
    if (rest != 0) file_.write(kZeros, static_cast<int64_t>(GgufWriter::kAlignment) - rest);
    return sum.squares == 0.0 ? 0.0 : std::sqrt(sum.squared_errors / sum.squares);
  }

 private:
  static Errors Store(const TensorView& tensor, int64_t first, int64_t count, DType to,
                      std::byte* out) {
    if (to == tensor.dtype) {
      std::memcpy(out, tensor.data + DTypeBytes(to, first), DTypeBytes(to, count));
      return {};
    }
    std::vector<float> values(count);
    ReadFloats(tensor, first, count, values.data());
    if (to == DType::kF32) {
      std::memcpy(out, values.data(), count * sizeof(float));
      return {};
    }
    std::vector<float> rounded(count);
    Quantise(values.data(), count, to, out);
    Dequantise(to, out, count, rounded.data());
    Errors errors;
    for (int64_t idx = 0; idx < count; ++idx) {
      const double error = double{values[idx]} - double{rounded[idx]};
      errors.squares += double{values[idx]} * double{values[idx]};
      errors.squared_errors += error * error;
    }
    return errors;
  }

  std::ofstream& file_;
  Progress& progress_;
  ThreadPool& threads_;
  std::vector<std::byte> buffer_;
};

struct PlannedTensor {
  std::optional<TensorSpec> spec;  // that `source` has; none: `made` is it
  TensorView made;
  DType to;
};

// Adds the tensors to the header, then writes all.
Result<std::vector<ConvertedTensor>> WriteFile(GgufWriter header, const ModelPlan& decoder,
                                               const std::vector<TensorSpec>& specs,
                                               const TensorSource& source, DType to,
                                               const std::filesystem::path& out,
                                               ThreadPool& threads, int head_bits) {
  CHECK(CanQuantiseTo(to)) << DTypeName(to);
  std::vector<ConvertedTensor> converted;
  std::vector<PlannedTensor> planned;
  int64_t num_elements = 0;
  const auto plan_tensor = [&](const std::string& name, PlannedTensor tensor,
                               const std::vector<int64_t>& shape) {
    const TensorView written{nullptr, tensor.to, shape};
    header.AddTensor(name, tensor.to, shape);
    converted.push_back({name, tensor.to, written.num_bytes()});
    num_elements += written.num_elements();
    planned.push_back(std::move(tensor));
  };
  const std::vector<float> factors = RopeFactors(decoder);
  const TensorView rope{reinterpret_cast<const std::byte*>(factors.data()),
                        DType::kF32,
                        {static_cast<int64_t>(factors.size())}};
  plan_tensor("rope_freqs.weight", {std::nullopt, rope, DType::kF32}, rope.shape);
  ASSIGN_OR_RETURN(const WeightPlan weights, WeightPlan::Make(specs, &source,
                                                              {.reader = WeightReader::kGgufFile,
                                                               .rounding = to,
                                                               .head_bits = head_bits}));
  for (const PlannedWeight& weight : weights.weights()) {
    plan_tensor(GgufTensorName(weight.spec.name), {weight.spec, {}, weight.loaded.unit},
                weight.spec.shape);
  }

  std::filesystem::path partial = out;
  partial += ".partial";
  std::ofstream file(partial, std::ios::binary);
  const std::string bytes = header.Header();
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  Progress progress("converting", num_elements, Progress::Unit::kItems);
  TensorWriter writer(file, progress, threads);
  for (size_t idx = 0; idx < planned.size() && file; ++idx) {
    TensorView tensor = planned[idx].made;
    if (planned[idx].spec) {
      // Read as it is written: a source may make a tensor that is valid until the next one.
      auto read = source.Get(*planned[idx].spec);
      if (!read.ok()) {
        std::error_code ignored;
        std::filesystem::remove(partial, ignored);
        return read.error();
      }
      tensor = std::move(*read);
    }
    converted[idx].relative_error = writer.Write(tensor, planned[idx].to);
  }
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(partial, out, error);
  if (!file || error) {
    std::filesystem::remove(partial, error);
    return MakeError("cannot write {} (no such directory, or disk full?)", out.string());
  }
  return converted;
}

}  // namespace

Result<std::vector<ConvertedTensor>> ConvertToGguf(const ModelDescription& model,
                                                   const TensorSource& source, DType to,
                                                   const std::filesystem::path& out,
                                                   ThreadPool& threads, int head_bits) {
  GgufWriter header;
  AddPlanMetadata(model.plan, header);
  header.AddString("general.name", model.ShortName());
  if (model.directory) {
    RETURN_IF_ERROR(AddTextMetadata(*model.directory, model.plan.vocab_size, header));
  }
  return WriteFile(std::move(header), model.plan, RequiredTensors(model.plan), source, to, out,
                   threads, head_bits);
}

Result<std::vector<ConvertedTensor>> ConvertToGguf(const AssistantPlan& plan,
                                                   const TensorSource& source, DType to,
                                                   const std::filesystem::path& out,
                                                   ThreadPool& threads, int head_bits) {
  AssistantPlan dense = plan;
  dense.ordered_head.reset();
  GgufWriter header;
  AddPlanMetadata(dense, header);
  return WriteFile(std::move(header), dense.decoder, RequiredTensors(dense), source, to, out,
                   threads, head_bits);
}

}  // namespace lapidary
