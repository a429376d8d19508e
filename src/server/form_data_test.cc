#include "server/form_data.h"

#include <gtest/gtest.h>

namespace lapidary {
namespace {

TEST(FormDataTest, FieldsAreFoundWhateverTheirBytes) {
  const std::string body =
      "--XX\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\ngemma\r\n"
      "--XX\r\nContent-Disposition: form-data; filename=\"a.wav\"; name=\"file\"\r\n"
      "Content-Type: audio/wav\r\n\r\nRIFF\r\n--X\r\n\r\n--XX\r\n"
      "content-disposition: form-data; name=\"empty\"\r\n\r\n\r\n--XX--\r\n";
  std::vector<FormField> fields;
  ASSERT_FALSE(ParseFormData(body, &fields));
  ASSERT_EQ(fields.size(), 3u);
  EXPECT_EQ(fields[0].name, "model");
  EXPECT_EQ(fields[0].value, "gemma");
  EXPECT_EQ(fields[1].name, "file");
  EXPECT_EQ(fields[1].value, "RIFF\r\n--X\r\n");
  EXPECT_EQ(fields[2].name, "empty");
  EXPECT_EQ(fields[2].value, "");
}

TEST(FormDataTest, WhatIsCutOrNoFormIsRefused) {
  const std::string body = "--X\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nb\r\n--X--";
  std::vector<FormField> whole;
  EXPECT_FALSE(ParseFormData(body, &whole));
  for (size_t length = 0; length < body.size(); ++length) {
    std::vector<FormField> fields;
    EXPECT_TRUE(ParseFormData(std::string_view(body).substr(0, length), &fields)) << length;
  }
  std::vector<FormField> fields;
  EXPECT_TRUE(ParseFormData("{\"model\": \"gemma\"}", &fields));
  EXPECT_TRUE(ParseFormData("--" + std::string(100, 'x') + "\r\n", &fields));
}

TEST(FormDataTest, ManyFieldsAreRefused) {
  std::string body = "--X";
  for (size_t idx = 0; idx <= kMaxFormFields; ++idx) {
    body += "\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nb\r\n--X";
  }
  std::vector<FormField> fields;
  EXPECT_TRUE(ParseFormData(body + "--", &fields));
}

}  // namespace
}  // namespace lapidary
