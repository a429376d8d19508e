# lapidary_embed(TARGET VARIABLE FILE): compiles FILE into TARGET as
#   namespace lapidary { extern const std::string_view VARIABLE; }
function(lapidary_embed target variable file)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/${variable}.cc)
  add_custom_command(
    OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DINPUT=${file} -DOUTPUT=${output} -DVARIABLE=${variable} -P
            ${PROJECT_SOURCE_DIR}/cmake/EmbedFileScript.cmake
    DEPENDS ${file} ${PROJECT_SOURCE_DIR}/cmake/EmbedFileScript.cmake)
  target_sources(${target} PRIVATE ${output})
endfunction()
