"""Clients built on top of the official ones, with a model that answers. Heavy to install, so each is skipped where it
is not there: pip install -r tests/requirements-clients.txt"""

import asyncio
from pathlib import Path

import pytest

PEBBLE = Path(__file__).resolve().parents[2] / "models" / "pebble-e"
SUM = "Calculate 70 x 4."
QUESTION = "What is the weather in Lima and in Fernhill?"
WEATHER = {"Lima": {"sky": "sunny", "degrees": 14}, "Fernhill": {"sky": "foggy", "degrees": 27}}


def get_weather(city: str) -> dict:
    """Current weather.

    Args:
        city: The city
    """
    return WEATHER[city]


@pytest.fixture(scope="module")
def pebble(start):
    return start("--device", "cpu", model=PEBBLE)


def test_litellm(pebble):
    litellm = pytest.importorskip("litellm")
    options = {"api_key": "none", "temperature": 0, "messages": [{"role": "user", "content": SUM}]}
    for model, base in (("openai/pebble-e", pebble.url + "/v1"), ("anthropic/pebble-e", pebble.url)):
        whole = litellm.completion(model=model, api_base=base, max_tokens=100, **options)
        assert whole.choices[0].message.content == "70 * 4 = 280"
        stream = litellm.completion(model=model, api_base=base, max_tokens=100, stream=True, **options)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "70 * 4 = 280"


@pytest.mark.parametrize("uses_responses", [False, True])
def test_langchain(pebble, uses_responses):
    langchain = pytest.importorskip("langchain_openai")
    model = langchain.ChatOpenAI(model="pebble-e", base_url=pebble.url + "/v1", api_key="none", temperature=0,
                                 use_responses_api=uses_responses)
    assert model.invoke(SUM).text == "70 * 4 = 280"
    assert "".join(chunk.text for chunk in model.stream(SUM)) == "70 * 4 = 280"
    calls = model.bind_tools([get_weather]).invoke(QUESTION).tool_calls
    assert [(call["name"], call["args"]) for call in calls] == [
        ("get_weather", {"city": "Lima"}), ("get_weather", {"city": "Fernhill"})]


def test_openai_agents(pebble):
    agents = pytest.importorskip("agents")
    agents.set_tracing_disabled(True)

    async def run():
        async with pebble.async_client() as client:
            for model in (agents.OpenAIResponsesModel("pebble-e", client),
                          agents.OpenAIChatCompletionsModel("pebble-e", client)):
                agent = agents.Agent(name="a", model=model, tools=[agents.function_tool(get_weather)],
                                     model_settings=agents.ModelSettings(temperature=0))
                assert (await agents.Runner.run(agent, SUM)).final_output == "70 * 4 = 280"
                streamed = agents.Runner.run_streamed(agent, QUESTION)
                events = [event.type async for event in streamed.stream_events()]
                assert "run_item_stream_event" in events
                assert streamed.final_output
    asyncio.run(run())


def test_pydantic_ai(pebble):
    pydantic_ai = pytest.importorskip("pydantic_ai")
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider
    provider = OpenAIProvider(base_url=pebble.url + "/v1", api_key="none")
    for model in (OpenAIChatModel("pebble-e", provider=provider), OpenAIResponsesModel("pebble-e", provider=provider)):
        agent = pydantic_ai.Agent(model, tools=[get_weather], model_settings={"temperature": 0})
        assert agent.run_sync(SUM).output == "70 * 4 = 280"
        assert agent.run_sync(QUESTION).output


def test_instructor_gets_what_it_asks_for(pebble):
    instructor = pytest.importorskip("instructor")
    import pydantic

    class Result(pydantic.BaseModel):
        sum: int

    with pebble.client() as client:
        for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
            wrapped = instructor.from_openai(client, mode=mode)
            answer = wrapped.chat.completions.create(model="pebble-e", response_model=Result, temperature=0,
                                                     max_retries=0, messages=[{"role": "user", "content": SUM}])
            assert isinstance(answer.sum, int)
