// An uploaded form: any bytes give fields that lie in the body, or an error.
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "server/form_data.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  std::vector<lapidary::FormField> fields;
  if (const lapidary::ApiStatus error = lapidary::ParseFormData(body, &fields)) {
    CHECK(error->status == 400 && !error->message.empty());
    return 0;
  }
  CHECK_LE(fields.size(), lapidary::kMaxFormFields);
  for (const lapidary::FormField& field : fields) {
    CHECK(field.value.data() >= body.data());
    CHECK(field.value.data() + field.value.size() <= body.data() + body.size());
  }
  return 0;
}
