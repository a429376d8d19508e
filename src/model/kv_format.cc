#include "model/kv_format.h"

namespace lapidary {

std::string KvFormatName(KvFormat format) {
  switch (format) {
    case KvFormat::kF32:
      return "float32";
    case KvFormat::kBF16:
      return "bfloat16";
    case KvFormat::kInt8:
      return "int8";
    case KvFormat::kFp8:
      return "fp8";
  }
  return "";
}

Result<KvFormat> ParseKvFormat(std::string_view name) {
  if (name == "fp8_e4m3") return KvFormat::kFp8;
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kBF16, KvFormat::kInt8, KvFormat::kFp8}) {
    if (name == KvFormatName(format)) return format;
  }
  return MakeError(
      "'{}' is no format of a KV cache: it is auto, float32, bfloat16, int8 or fp8 (E4M3)",
      name.substr(0, 40));
}

}  // namespace lapidary
