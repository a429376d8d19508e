#include "bench_kernels/product_shapes.h"

#include <gtest/gtest.h>

#include <map>

#include "load/model_directory.h"

namespace lapidary {
namespace {

std::map<std::string, std::pair<int, int>> Shapes(const std::string& preset) {
  std::map<std::string, std::pair<int, int>> shapes;
  for (const ProductShape& shape : ProductShapes(preset, DescribeModel(preset).value().plan)) {
    EXPECT_TRUE(shapes.emplace(shape.name, std::pair(shape.in_dim, shape.out_dim)).second)
        << shape.name;
  }
  return shapes;
}

TEST(ProductShapesTest, ModelsHaveTheirProductsOnce) {
  const auto e2b = Shapes("e2b");
  EXPECT_EQ(e2b.at("e2b qkv_sliding"), std::pair(1536, 2560));
  EXPECT_EQ(e2b.at("e2b qkv_full"), std::pair(1536, 5120));
  EXPECT_EQ(e2b.at("e2b q_sliding"), std::pair(1536, 2048));
  EXPECT_EQ(e2b.at("e2b o_full"), std::pair(4096, 1536));
  EXPECT_EQ(e2b.at("e2b gate_up"), std::pair(1536, 12288));
  EXPECT_EQ(e2b.at("e2b gate_up_wide"), std::pair(1536, 24576));
  EXPECT_EQ(e2b.at("e2b down_wide"), std::pair(12288, 1536));
  EXPECT_EQ(e2b.at("e2b ple_gate"), std::pair(1536, 256));
  EXPECT_EQ(e2b.at("e2b head"), std::pair(1536, 262144));
  const auto big = Shapes("31b");
  EXPECT_EQ(big.at("31b qkv_sliding"), std::pair(5376, 16384));
  EXPECT_EQ(big.at("31b gate_up"), std::pair(5376, 43008));
  EXPECT_EQ(big.count("31b ple_gate"), 0u);
  EXPECT_EQ(Shapes("26b-a4b").count("26b-a4b head"), 1u);
}

}  // namespace
}  // namespace lapidary
