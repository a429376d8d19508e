#include "base/base64.h"

#include <gtest/gtest.h>

namespace lapidary {
namespace {

TEST(Base64Test, EncodesWhatItDecodes) {
  EXPECT_EQ(EncodeBase64(""), "");
  EXPECT_EQ(EncodeBase64("f"), "Zg==");
  EXPECT_EQ(EncodeBase64("fo"), "Zm8=");
  EXPECT_EQ(EncodeBase64("foo"), "Zm9v");
  std::string bytes;
  for (int value = 0; value < 256; ++value) bytes += static_cast<char>(value);
  EXPECT_EQ(DecodeBase64(EncodeBase64(bytes)).value(), bytes);
}

TEST(Base64Test, DecodesEveryRemainder) {
  EXPECT_EQ(DecodeBase64("").value(), "");
  EXPECT_EQ(DecodeBase64("Zg==").value(), "f");
  EXPECT_EQ(DecodeBase64("Zm8=").value(), "fo");
  EXPECT_EQ(DecodeBase64("Zm9v").value(), "foo");
  EXPECT_EQ(DecodeBase64("Zm9vYg").value(), "foob");
  EXPECT_EQ(DecodeBase64("Zm9v\r\nYmFy\n").value(), "foobar");
  EXPECT_EQ(DecodeBase64("+/-_").value(), "\xfb\xff\xbf");
}

TEST(Base64Test, RefusesWhatIsNone) {
  EXPECT_FALSE(DecodeBase64("Zm9*").ok());
  EXPECT_FALSE(DecodeBase64("Zm=9").ok());
  EXPECT_FALSE(DecodeBase64("Zm9vY").ok());
  EXPECT_FALSE(DecodeBase64("\xff").ok());
}

}  // namespace
}  // namespace lapidary
