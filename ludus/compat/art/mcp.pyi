# Written from names.toml: python -m tests.compat.test_stubs
from ludus.compat.art.generate import generate_scenarios as generate_scenarios
from ludus.compat.art.scenario import GeneratedScenario as GeneratedScenario
from ludus.compat.art.scenario import GeneratedScenarioCollection as GeneratedScenarioCollection
from ludus.compat.art.scenario import MCPResource as MCPResource
from ludus.compat.art.scenario import MCPTool as MCPTool
from ludus.compat.art.scenario import complete_task_tool as complete_task_tool
