"""Clients built on top of the official ones. Heavy to install, so each is skipped where it is not there:
pip install openai-agents litellm langchain-openai instructor 'pydantic-ai-slim[openai,anthropic]'"""

import asyncio

import pytest

TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}}


def test_litellm(server):
    litellm = pytest.importorskip("litellm")
    options = dict(api_key="none", max_tokens=8, messages=[{"role": "user", "content": "Hello"}])
    whole = litellm.completion(model="openai/tiny", api_base=server.url + "/v1", seed=1, **options)
    assert whole.choices[0].message.content
    stream = litellm.completion(model="openai/tiny", api_base=server.url + "/v1", seed=1, stream=True, **options)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == whole.choices[0].message.content
    anthropic = litellm.completion(model="anthropic/tiny", api_base=server.url, **options)
    assert anthropic.usage.completion_tokens == 8


def test_langchain(server):
    langchain = pytest.importorskip("langchain_openai")
    for uses_responses in (False, True):
        model = langchain.ChatOpenAI(model="tiny", base_url=server.url + "/v1", api_key="none", max_tokens=8, seed=1,
                                     use_responses_api=uses_responses)
        if uses_responses:
            model = langchain.ChatOpenAI(model="tiny", base_url=server.url + "/v1", api_key="none", max_tokens=8,
                                         use_responses_api=True)
        assert model.invoke("Hello").usage_metadata["output_tokens"] == 8
        assert list(model.stream("Hello"))
        assert model.bind_tools([TOOL]).invoke("Hello").usage_metadata["input_tokens"] > 20


def test_openai_agents(server):
    agents = pytest.importorskip("agents")
    agents.set_tracing_disabled(True)

    async def run():
        async with server.async_client() as client:
            for model in (agents.OpenAIResponsesModel("tiny", client),
                          agents.OpenAIChatCompletionsModel("tiny", client)):
                agent = agents.Agent(name="a", instructions="Be brief.", model=model,
                                     model_settings=agents.ModelSettings(max_tokens=8))
                result = await agents.Runner.run(agent, "Hello")
                assert result.raw_responses[0].usage.output_tokens == 8
                streamed = agents.Runner.run_streamed(agent, "Hello")
                assert [event async for event in streamed.stream_events()]
    asyncio.run(run())


def test_pydantic_ai(server):
    pydantic_ai = pytest.importorskip("pydantic_ai")
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider
    openai_provider = OpenAIProvider(base_url=server.url + "/v1", api_key="none")
    for model in (OpenAIChatModel("tiny", provider=openai_provider),
                  OpenAIResponsesModel("tiny", provider=openai_provider),
                  AnthropicModel("tiny", provider=AnthropicProvider(base_url=server.url, api_key="none"))):
        result = pydantic_ai.Agent(model, model_settings={"max_tokens": 8}).run_sync("Hello")
        assert result.output


def test_instructor_reaches_the_server(server):
    instructor = pytest.importorskip("instructor")
    import openai
    with server.client() as client:
        wrapped = instructor.from_openai(client, mode=instructor.Mode.TOOLS)
        answer = wrapped.chat.completions.create(model="tiny", response_model=None, max_tokens=8,
                                                 messages=[{"role": "user", "content": "Hello"}])
        assert isinstance(answer, openai.types.chat.ChatCompletion)
